"""Serving the run folder's growing files: pulled by offset, so that nothing is lost or doubled."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, Dict, Iterator, List, Tuple

from runner.core.protocol.paths import RunFolder

MAX_READ = 1 << 20
LULL_S = 1.0
"""After so long without news, files are looked at less often."""


class Reader:
    """Pending reads of one run; each is answered once, when there is something, or at the end."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._pending: List[Dict[str, Any]] = []
        self._news = time.monotonic()

    @property
    def idle(self) -> bool:
        """Whether files may be looked at less often."""
        return not self._pending or time.monotonic() - self._news > LULL_S

    def ask(self, request: Dict[str, Any]) -> None:
        """Take a request: id, source ("events" or a log's stem), stream, attempt, offset, n.

        With `tail`, it begins so many lines before the end; with `since`, at the first line that
        was not there so many seconds ago; with `wait` false, what is there now is all.
        """
        self._pending.append(request)
        self._news = time.monotonic()

    def answers(self, *, over: bool) -> Iterator[Tuple[Dict[str, Any], bytes]]:
        """Yield what can be answered now; once the run is `over`, everything can."""
        waiting = []
        for request in self._pending:
            wrong = ""
            try:
                chunk = self._chunk(request)
            except OSError as error:  # of a disk; it may get better
                chunk, wrong = b"", os.strerror(error.errno or 0)
            if not chunk and not over and request.get("wait", True):
                waiting.append(request)
                continue
            self._news = time.monotonic()
            told = {"id": request["id"], "offset": request["offset"], "eof": not chunk}
            yield {**told, **({"error": wrong} if wrong else {})}, chunk
        self._pending = waiting

    def _chunk(self, request: Dict[str, Any]) -> bytes:
        if request["source"] == "events":
            path = self._folder.events
        else:
            path = self._folder.stream(request["attempt"], request["source"], request["stream"])
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return b""
        try:
            if "tail" in request:
                request["offset"] = _start_of_tail(descriptor, request.pop("tail"))
            if "since" in request:
                before = self._size_before(request, time.time() - float(request.pop("since")))
                request["offset"] = max(request["offset"], _next_line(descriptor, before))
            return os.pread(descriptor, min(request["n"], MAX_READ), request["offset"])
        finally:
            os.close(descriptor)

    def _size_before(self, request: Dict[str, Any], moment: float) -> int:
        """Return how long a log was at a moment, to within the pause between two looks at it."""
        name, size = f"{request['source']}.{request['stream']}", 0
        try:
            with open(self._folder.sizes(request["attempt"]), encoding="ascii") as file:
                for line in file:
                    with contextlib.suppress(
                        ValueError, KeyError, TypeError
                    ):  # torn by a full disk
                        sample = json.loads(line)
                        if sample["wall"] > moment:
                            break
                        size = int(sample["sizes"].get(name, size))
        except OSError:  # none yet
            pass
        return size


def _next_line(descriptor: int, at: int) -> int:
    """Return where the first line begins at a place or after it."""
    if at == 0 or os.pread(descriptor, 1, at - 1) == b"\n":
        return at
    while True:
        block = os.pread(descriptor, MAX_READ, at)
        found = block.find(b"\n")
        if found >= 0 or not block:
            return at + max(found + 1, 0)
        at += len(block)


def _start_of_tail(descriptor: int, lines: int) -> int:
    """Return where the last lines of a file begin."""
    at = size = os.fstat(descriptor).st_size
    if lines <= 0:
        return size
    if at and os.pread(descriptor, 1, at - 1) == b"\n":
        at -= 1  # the end of the last line is not the beginning of another
    while at > 0:
        step = min(MAX_READ, at)
        at -= step
        block = os.pread(descriptor, step, at)
        found = len(block)
        while (found := block.rfind(b"\n", 0, found)) >= 0:
            lines -= 1
            if not lines:
                return at + found + 1
    return 0
