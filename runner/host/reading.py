"""Serving the run folder's growing files: pulled by offset, so that nothing is lost or doubled."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Iterator, List, Tuple

from runner.core.layout import RunFolder

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
        """Take a request: id, source ("events" or a log's stem), stream, attempt, offset, n."""
        self._pending.append(request)
        self._news = time.monotonic()

    def answers(self, *, over: bool) -> Iterator[Tuple[Dict[str, Any], bytes]]:
        """Yield what can be answered now; once the run is `over`, everything can."""
        waiting = []
        for request in self._pending:
            chunk = self._chunk(request)
            if not chunk and not over:
                waiting.append(request)
                continue
            self._news = time.monotonic()
            yield {"id": request["id"], "offset": request["offset"], "eof": not chunk}, chunk
        self._pending = waiting

    def _chunk(self, request: Dict[str, Any]) -> bytes:
        if request["source"] == "events":
            path = self._folder.events
        else:
            path = self._folder.stream(request["attempt"], request["source"], request["stream"])
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            return b""
        try:
            return os.pread(descriptor, min(request["n"], MAX_READ), request["offset"])
        finally:
            os.close(descriptor)
