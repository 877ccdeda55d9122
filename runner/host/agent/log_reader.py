"""Log reader of the agent: serves growing files by offset, so that no byte is lost or doubled."""

from __future__ import annotations

import os
import queue
import time
from typing import Any, Dict, List, NamedTuple, Tuple

from runner.core.wire.paths import RunPaths

MAX_READ = 1 << 20
IDLE_AFTER_S = 1.0  # without new data, files are read less often
PAUSE_SHARE = 0.25  # of the time that a file has been quiet: a pause before it is opened again
Answer = Tuple[Dict[str, Any], bytes]  # to a read: what it is, and the bytes


class Look(NamedTuple):
    """What the last look at a file found, and when the next one is due."""

    end: int
    grown_at: float
    next_at: float


class LogReader:
    """Pending reads of one run; each is answered once, when there is data, or at the end.

    `pauses_s` are the shortest and the longest one between two looks at a file without new data.
    """

    def __init__(self, folder: RunPaths, pauses_s: Tuple[float, float] = (0.0, 0.0)) -> None:
        self._folder = folder
        self._pauses_s = pauses_s
        self._looks: Dict[Tuple[Any, ...], Look] = {}
        self._requests: "queue.SimpleQueue[Dict[str, Any]]" = queue.SimpleQueue()
        self._pending: List[Dict[str, Any]] = []
        self._last_data = time.monotonic()

    @property
    def idle(self) -> bool:
        """Whether files may be read less often."""
        return (
            not (self._pending or self._requests.qsize())
            or time.monotonic() - self._last_data > IDLE_AFTER_S
        )

    def submit(self, request: Dict[str, Any]) -> None:
        """Queue a request: id, source ("events" or a log's stem), stream, attempt, offset, n.

        With `tail`, it begins that many lines before the end; with `wait` false, it is answered
        at once.
        """
        self._requests.put(request)
        self._last_data = time.monotonic()

    def poll(self, *, ended: bool) -> List[Answer]:
        """Return the answers that are ready; once the run has `ended`, all are.

        It may wait for a disk, in another thread than that of `submit`.
        """
        while not self._requests.empty():
            self._pending.append(self._requests.get())
        answers = []
        unanswered = []
        for request in self._pending:
            if not (ended or self._is_due(request)):
                unanswered.append(request)
                continue
            problem = ""
            try:
                chunk = self._read_chunk(request)
            except OSError as error:  # of a disk that may recover
                chunk = b""
                problem = os.strerror(error.errno or 0)
            self._note_look(request, len(chunk))
            if not chunk and not ended and request.get("wait", True):
                unanswered.append(request)
                continue
            self._last_data = time.monotonic()
            reply = {"id": request["id"], "offset": request["offset"], "eof": not chunk}
            answers.append(({**reply, **({"error": problem} if problem else {})}, chunk))
        self._pending = unanswered
        return answers

    def _is_due(self, request: Dict[str, Any]) -> bool:
        last = self._looks.get(_file_key(request))
        if last is None or last.end != request["offset"] or not request.get("wait", True):
            return True
        return time.monotonic() >= last.next_at

    def _note_look(self, request: Dict[str, Any], size: int) -> None:
        key = _file_key(request)
        now = time.monotonic()
        last = self._looks.get(key)
        grown_at = now if size or last is None else last.grown_at
        shortest_s, longest_s = self._pauses_s
        pause_s = max(shortest_s, min(longest_s, PAUSE_SHARE * (now - grown_at)))
        if request["source"] == "events":  # others wait for what they say
            pause_s = shortest_s
        if size == min(request["n"], MAX_READ):  # there may be more
            pause_s = 0.0
        self._looks[key] = Look(request["offset"] + size, grown_at, now + pause_s)

    def _read_chunk(self, request: Dict[str, Any]) -> bytes:
        if request["source"] == "events":
            path = self._folder.events
        else:
            path = self._folder.stream_log(request["attempt"], request["source"], request["stream"])
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a rank may make a FIFO
        except FileNotFoundError:
            return b""
        try:
            if "tail" in request:
                request["offset"] = _tail_offset(descriptor, request.pop("tail"))
            return os.pread(descriptor, min(request["n"], MAX_READ), request["offset"])
        finally:
            os.close(descriptor)


def _file_key(request: Dict[str, Any]) -> Tuple[Any, ...]:
    return request["attempt"], request["source"], request["stream"]


def _tail_offset(descriptor: int, lines: int) -> int:
    offset = size = os.fstat(descriptor).st_size
    if lines <= 0:
        return size
    if offset and os.pread(descriptor, 1, offset - 1) == b"\n":
        offset -= 1  # the last line break begins no line
    while offset > 0:
        length = min(MAX_READ, offset)
        offset -= length
        block = os.pread(descriptor, length, offset)
        newline = len(block)
        while (newline := block.rfind(b"\n", 0, newline)) >= 0:
            lines -= 1
            if not lines:
                return offset + newline + 1
    return 0
