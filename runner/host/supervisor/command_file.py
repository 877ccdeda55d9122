"""Command file of a supervisor: agents on another host append commands to it, as lines of JSON.

It is on the common disk of a job's nodes, made before its readers start, and opened anew for each
look: with NFS an open asks the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, Callable, Dict

from runner.host.process.file_worker import Submit

POLL_S = 1.0
MAX_READ = 1 << 20


def append_command(path: str, line: bytes) -> None:
    """Append a command, in one write; OSError where the file is not there, or takes no more."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    try:
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class CommandFile:
    """The commands of one start of a job to this node's supervisor.

    Attributes:
        offset: Where those begin that were not taken.
    """

    def __init__(
        self,
        path: str,
        submit: Submit,
        on_command: Callable[[Dict[str, Any]], object],
        offset: int = 0,
    ) -> None:
        """Take commands from `offset` on; `on_command` may raise for a malformed one."""
        self._path, self._submit, self._on_command = path, submit, on_command
        self.offset, self._next_look = offset, 0.0
        self._is_reading = False  # a slow disk answers several looks at once

    def poll(self) -> None:
        """Look for new commands, if it is time."""
        now = time.monotonic()
        if now >= self._next_look and not self._is_reading:
            self._next_look = now + POLL_S
            self._is_reading = True
            self._submit(self._read, self._take)

    def _read(self) -> bytes:
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            return os.pread(file.fileno(), MAX_READ, self.offset)
        return b""

    def _take(self, data: bytes) -> None:
        self._is_reading = False
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._on_command(json.loads(line))
