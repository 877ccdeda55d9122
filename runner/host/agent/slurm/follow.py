"""Run of a job as an agent on its login node follows it: by files on their common disk."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from dataclasses import replace
from typing import Any, Callable, NamedTuple

from runner.core.model.plan import Order
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import JobPaths, RunPaths
from runner.core.protocol.timing import UNRESPONSIVE_S
from runner.host.agent.log_reader import LogReader
from runner.host.agent.request_queue import RequestSteps
from runner.host.agent.server import AgentContext
from runner.host.slurm import job, recovery
from runner.host.slurm.job_folder import JobSettings, command_file, last_start
from runner.host.storage.run_folder import has_ended, mtime
from runner.host.supervisor.command_file import append_command

JOB_POLL_S = 0.3  # its files are on a disk that many nodes share
LOG_PAUSES_S = (0.2, 2.0)  # the first is below JOB_POLL_S: a poll may come a little early
EXAMINE_S = 1.0
FULL_LOOK_S = 10.0  # events that have not grown are read all the same: the disk may have failed
SILENT_S = 45.0  # since a supervisor's last heartbeat; then Slurm is asked whether its job is on
ASK_S = 10.0


class Look(NamedTuple):
    """What the files of a node say."""

    ended: bool
    needs_reason: bool
    beaten_at: float  # by the clock of the disk
    is_ending: bool  # whether Slurm ends the job


class GrowingFile:
    """A file that is to be read again once it has grown, or after a while."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._size, self._next_full_look = -1, 0.0

    def has_grown(self) -> bool:
        """Return whether it has to be read."""
        size, now = 0, time.monotonic()
        with contextlib.suppress(OSError), open(self._path, "rb") as file:  # NFS asks at an open
            size = os.fstat(file.fileno()).st_size
        if size == self._size and now < self._next_full_look:
            return False
        self._size, self._next_full_look = size, now + FULL_LOOK_S
        return True


class FollowedJob:
    """The part of a job on one node; for its fields see `FollowedRun`.

    Large on purpose: when its files were last looked at, and what they said.
    """

    def __init__(
        self, context: AgentContext, folder: RunPaths, order: Order, *, ended: bool, read_only: bool
    ) -> None:
        self.log_reader = LogReader(folder, LOG_PAUSES_S)
        self.disk_wait_s = 0.0
        self.read_only, self.ended = read_only, ended
        self._context, self._folder, self._order = context, folder, order
        self._paths = JobPaths(order.workdir, order.run_id)
        self._start = last_start(self._paths).root
        self._next_look, self._is_asking = 0.0, False
        self._last_look, self._events = Look(False, False, 0.0, False), GrowingFile(folder.events)
        self._kill_wait_s = JobSettings(self._paths).kill_wait_s
        self._beaten_at, self._quiet_at = 0.0, time.monotonic() + SILENT_S

    def send_command(
        self, command: str, on_sent: Callable[[], object] = int, **fields: Any
    ) -> None:
        """Leave a command to the supervisor; a job needs no controller lease."""
        if command == "renew_lease":
            return
        if command in ("stop", "kill"):  # by then it has ended, or cannot say so
            grace_s = self._order.grace_s if command == "stop" else 0.0
            self._quiet_at = min(self._quiet_at, time.monotonic() + grace_s + UNRESPONSIVE_S)
        message = json.dumps({"command": command, "attempt": self._order.attempt, **fields})
        append = functools.partial(self._append, message.encode() + b"\n")
        self._context.files.submit(append, lambda _: on_sent())

    def _append(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # the job has not begun, or its folder is gone
            append_command(command_file(self._order), line)

    def check_ended(self) -> None:
        """Notice the end on record; complete a record that has none, once the job is over."""
        if not self.ended and not self._is_asking and time.monotonic() >= self._next_look:
            self._next_look = float("inf")
            self._context.files.submit(self._look, self._on_look)

    def _look(self) -> Look:
        beaten_at = mtime(self._folder.owner_file)
        if not (self._events.has_grown() or self._last_look.ended):
            return self._last_look._replace(beaten_at=beaten_at)
        ended = has_ended(self._folder, self._order)
        needs_reason = ended and recovery.needs_reason(self._folder, self._order)
        is_ending = not ended and recovery.is_ending(self._folder, self._order)
        self._last_look = Look(ended, needs_reason, beaten_at, is_ending)
        return self._last_look

    def _on_look(self, look: Look) -> None:
        now = time.monotonic()
        self._next_look = now + EXAMINE_S
        if look.beaten_at != self._beaten_at:
            self._beaten_at = look.beaten_at
            self._quiet_at = max(self._quiet_at, now + SILENT_S)
        if look.is_ending:
            self._quiet_at = min(self._quiet_at, now + self._kill_wait_s)
        is_silent = not (look.ended or self.read_only) and now > self._quiet_at
        if not (look.needs_reason or is_silent):
            self.ended = look.ended
            return
        self._is_asking = True
        self._context.requests.add(Frame("job", {"id": None}), self._ask(look))

    def _ask(self, look: Look) -> RequestSteps:
        """Have Slurm say why the job ended, or whether it is over."""
        try:
            if look.needs_reason:
                yield from recovery.record_reason(self._folder, self._order)
            else:
                found = yield from job.status(self._paths)
                if found.state and last_start(self._paths).root != self._start:
                    found = replace(found, state="PENDING")  # as it was before it started again
                if found.has_ended or found.state == "PENDING":
                    recovery.complete(self._folder, self._order, found)
        finally:
            yield functools.partial(self._on_asked, ended=look.ended)

    def _on_asked(self, *, ended: bool) -> None:
        self._is_asking, self.ended = False, ended
        self._next_look = time.monotonic() + ASK_S if not ended else 0.0
