"""Run of a job as an agent on its login node follows it: by files on their common disk."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from typing import Any, Callable, Optional

from runner.core.model.plan import Order
from runner.core.protocol.paths import JobPaths, RunPaths
from runner.host.agent.log_reader import LogReader
from runner.host.process import procfs
from runner.host.process.file_worker import Submit
from runner.host.storage.run_folder import has_ended
from runner.host.supervisor.command_file import append_command

EXAMINE_S = 1.0


class FollowedJob:
    """The part of a job on one node; for its fields see `FollowedRun`."""

    def __init__(
        self, folder: RunPaths, order: Order, submit: Submit, *, ended: bool, read_only: bool
    ) -> None:
        self.log_reader = LogReader(folder)
        self.disk_wait_s = 0.0
        self.read_only, self.ended = read_only, ended
        self._folder, self._order, self._submit = folder, order, submit
        self._paths = JobPaths(order.workdir, order.run_id)
        self._next_examination = 0.0

    def send_command(
        self, command: str, on_sent: Callable[[], object] = int, **fields: Any
    ) -> None:
        """Leave a command to the supervisor; a job needs no controller lease."""
        if command == "renew_lease":
            return
        message = json.dumps({"command": command, "attempt": self._order.attempt, **fields})
        append = functools.partial(self._append, message.encode() + b"\n")
        self._submit(append, lambda _: on_sent())

    def _append(self, line: bytes) -> None:
        number = int(procfs.read_text(self._paths.last_start) or 0)
        with contextlib.suppress(OSError):  # the job has not begun, or its folder is gone
            append_command(self._paths.start(number).commands(self._order.node), line)

    def try_connect(self, *, force: bool = False) -> None:
        """Do nothing: there is no connection to a supervisor on another machine."""

    def check_ended(self) -> None:
        """Notice the end on record."""
        now = time.monotonic()
        if not self.ended and now >= self._next_examination:
            self._next_examination = float("inf")
            self._submit(functools.partial(has_ended, self._folder, self._order), self._on_examined)

    def _on_examined(self, ended: Optional[bool]) -> None:
        self._next_examination = time.monotonic() + EXAMINE_S
        self.ended = bool(ended)
