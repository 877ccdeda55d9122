"""Stream: bytes of files and of commands, sent as far as the controller has granted credit.

It grants more when it has shown or written what came. Events need no credit.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

from runner.core.wire.codec import INITIAL_CREDIT
from runner.core.wire.files import CHUNK
from runner.core.wire.paths import EVENTS_FILE, RUN_LOGS, RunPaths, log_order
from runner.host.process.jobs import POLL_S, checkpoint, pause

MAX_EVENTS_READ = 1 << 20
BUSY_POLL_S = 0.02
IDLE_AFTER_S = 1.0  # without new data, files are looked at less often
Send = Callable[..., None]  # takes the kind of a reply, bytes, and what they are


class Credit:
    """How many bytes the controller has room for."""

    def __init__(self) -> None:
        self._bytes = INITIAL_CREDIT
        self._changed = threading.Condition()

    def grant(self, size: int) -> None:
        """Add what the controller has granted, or what was taken and not used."""
        with self._changed:
            self._bytes += size
            self._changed.notify_all()

    def take(self, most: int, wait_s: float = float("inf")) -> int:
        """Take at most so many bytes; return 0 if there are none for so long."""
        deadline = time.monotonic() + wait_s
        while True:
            checkpoint()
            with self._changed:
                remaining_s = deadline - time.monotonic()
                if not self._bytes and remaining_s > 0:
                    self._changed.wait(min(POLL_S, remaining_s))
                if self._bytes or remaining_s <= 0:
                    taken = min(most, self._bytes)
                    self._bytes -= taken
                    return taken


class LogStream:
    """The events and logs of one attempt, each from the offset at which the controller has it.

    Of `request`, `ranks` are those whose logs are wanted, None for all; `others` are the logs
    beside those of ranks, and their metrics. Files that are there at first begin `tail` lines
    before their end, if there is a tail.
    """

    def __init__(
        self, folder: RunPaths, request: Mapping[str, Any], credit: Credit, send: Send
    ) -> None:
        self._folder = folder.attempt_folder(int(request["attempt"]))
        self._events_path = folder.events
        self._offsets: Dict[str, int] = {name: int(at) for name, at in request["offsets"].items()}
        self._ranks: Optional[Set[int]] = None
        if request["ranks"] is not None:
            self._ranks = {*request["ranks"]}
        self._has_others = bool(request["others"])
        self._tail: Optional[int] = request.get("tail")
        self._credit = credit
        self._send = send
        self._errors: Dict[str, str] = {}  # of disks that may recover

    def send_once(self) -> None:
        for name in self._names():
            while self._send_log(name, self._credit.take(CHUNK)):
                pass
        self._send_errors()

    def follow(self, has_ended: Callable[[], bool]) -> None:
        """Send what files grow by, of each in its turn, until the run has ended."""
        grown_at = time.monotonic()
        first = 0  # whose turn it is
        while True:
            is_last = has_ended()
            has_grown = False
            while self._send_part(EVENTS_FILE, MAX_EVENTS_READ):
                has_grown = True
            is_blocked = False
            names = self._names()
            first = (first + 1) % max(1, len(names))
            for name in names[first:] + names[:first]:
                credit = self._credit.take(CHUNK, wait_s=0)
                if not credit:
                    is_blocked = is_blocked or self._has_more(name)
                    continue
                has_grown = self._send_log(name, credit) > 0 or has_grown
            self._tail = None
            now = time.monotonic()
            if has_grown:
                grown_at = now
            elif is_blocked:
                self._credit.grant(self._credit.take(1, wait_s=BUSY_POLL_S))
            elif is_last:
                break
            else:
                pause(BUSY_POLL_S if now - grown_at < IDLE_AFTER_S else POLL_S)
        self._send_errors()

    def _names(self) -> List[str]:
        try:
            names = os.listdir(self._folder)
        except OSError:
            return []
        places: Dict[str, Tuple[int, int]] = {}
        for name in names:
            place = log_order(name, self._ranks, has_others=self._has_others)
            if place is not None:
                places[name] = place
        return sorted(places, key=lambda name: places[name])

    def _path(self, name: str) -> str:
        return self._events_path if name == EVENTS_FILE else os.path.join(self._folder, name)

    def _has_more(self, name: str) -> bool:
        try:
            return os.stat(self._path(name)).st_size > self._offsets.get(name, 0)
        except OSError:
            return False

    def _send_log(self, name: str, credit: int) -> int:
        """Send what follows of a log, at most `credit`; return how many bytes that was."""
        sent = 0
        try:
            sent = self._send_part(name, credit)
        finally:
            self._credit.grant(credit - sent)
        return sent

    def _send_part(self, name: str, size: int) -> int:
        checkpoint()
        try:  # without waiting: a rank may make a FIFO
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_NONBLOCK)
            try:
                if name not in self._offsets:
                    self._begin(name, descriptor)
                data = os.pread(descriptor, size, self._offsets[name])
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return 0
        except OSError as error:
            self._errors[name] = os.strerror(error.errno or 0)
            return 0
        self._errors.pop(name, None)
        if data:
            self._send_as(name, data)
            self._offsets[name] += len(data)
        return len(data)

    def _begin(self, name: str, descriptor: int) -> None:
        self._offsets[name] = 0
        if self._tail is not None and name not in (EVENTS_FILE, RUN_LOGS[-1]):
            self._offsets[name] = _tail_offset(descriptor, self._tail)
            self._send_as(name, b"")

    def _send_as(self, name: str, data: bytes, **more: str) -> None:
        kind = "events" if name == EVENTS_FILE else "data"
        self._send(kind, data, file=name, offset=self._offsets.get(name, 0), **more)

    def _send_errors(self) -> None:
        for name, error in self._errors.items():
            self._send_as(name, b"", error=error)


def _tail_offset(descriptor: int, lines: int) -> int:
    offset = size = os.fstat(descriptor).st_size
    if lines <= 0:
        return size
    if offset and os.pread(descriptor, 1, offset - 1) == b"\n":
        offset -= 1  # the last line break begins no line
    while offset > 0:
        length = min(CHUNK, offset)
        offset -= length
        block = os.pread(descriptor, length, offset)
        newline = len(block)
        while (newline := block.rfind(b"\n", 0, newline)) >= 0:
            lines -= 1
            if not lines:
                return offset + newline + 1
    return 0
