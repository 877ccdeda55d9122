"""Launcher process: the program of an order, started once and followed to its end."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from typing import Dict, List, Optional, Tuple

from runner.core.model.order import Order
from runner.core.protocol.events import ProgramExited, ProgramStarted
from runner.core.protocol.paths import PROGRAM_LOG, RunPaths
from runner.host.process import cgroup, procfs
from runner.host.storage.journal import EventLog

ExitStatus = Tuple[Optional[int], Optional[int]]
"""An exit code, or a signal; neither for a program that never started."""

_APPEND_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class LauncherProcess:
    """The program of one attempt.

    Attributes:
        pid: Its process; 0 before it started.
        exit_status: How it ended; None while it has not.
        cgroup: Where it runs; one without a path if there is none.
    """

    def __init__(self, folder: RunPaths, order: Order, journal: EventLog) -> None:
        self.pid = 0
        self.exit_status: Optional[ExitStatus] = None
        self.cgroup = cgroup.Cgroup()
        self._folder, self._order, self._journal = folder, order, journal
        self._process: Optional[subprocess.Popen[bytes]] = None

    @property
    def start_settled(self) -> bool:
        """Whether it was started, failed to start, or must not start any more."""
        return bool(self.pid) or self.exit_status is not None

    @property
    def is_running(self) -> bool:
        """Whether it runs."""
        return bool(self.pid) and self.exit_status is None

    def create_cgroup(self) -> None:
        """Create the cgroup for the program and what its node runs beside it."""
        if not self._order.is_standby:
            order = self._order
            self.cgroup = cgroup.create(order.run_id, order.node, order.attempt)

    def start(self, environ: Dict[str, str]) -> bool:
        """Start the program; return False if that failed."""
        order = self._order
        # A rank shim ignores TERM; its own death ends its rank.
        death_signal = signal.SIGTERM if order.launcher else signal.SIGKILL
        preexec_fn = functools.partial(child_setup, self.cgroup, death_signal)
        try:
            out, err = (
                os.open(
                    self._folder.stream_log(order.attempt, PROGRAM_LOG, stream),
                    _APPEND_FLAGS,
                    0o600,
                )
                for stream in ("out", "err")
            )
            self._process = subprocess.Popen(
                order.argv,
                env={**environ, **order.env},
                cwd=order.cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=preexec_fn,  # noqa: PLW1509 (this process has one thread)
            )
        except OSError as error:
            problem = f"cannot start {order.argv[0]} in {order.cwd}: {error.strerror}"
            self._journal.append(ProgramExited(error=problem))
            self.exit_status = (None, None)
            return False
        os.close(out)
        os.close(err)
        self.pid = self._process.pid
        if not self.cgroup.contains(self.pid):
            self.cgroup.remove()
            self.cgroup = cgroup.Cgroup()
        self._journal.append(ProgramStarted(self.pid, self.cgroup.path, order.rejoin_count))
        return True

    def on_reaped(self, pid: int, status: int) -> bool:
        """Note the end of a child; return whether it was the program."""
        if self._process is None or pid != self.pid:
            return False
        self.exit_status = procfs.record_exit(self._process, status)
        return True

    def cancel(self) -> None:
        """Never start it, if it has not been started."""
        if not self.start_settled:
            self.exit_status = (None, None)

    def term_targets(self) -> List[int]:
        """Return the processes that get TERM.

        These are a launcher alone, since it forwards TERM; else the program's session, and the rank
        if that has its own.
        """
        if self._order.launcher:
            return [self.pid]
        session = [pid for pid, process in procfs.table().items() if process.session == self.pid]
        return sorted({*session, *self.rank_pids()})

    def rank_pids(self) -> List[int]:
        """Return the running rank of a program without a launcher: the child of its shim."""
        if self._order.launcher or not self.is_running:
            return []
        return [pid for pid, process in procfs.table().items() if process.ppid == self.pid]


def child_setup(program_cgroup: cgroup.Cgroup, death_signal: signal.Signals) -> None:
    """Prepare a new process: in the cgroup, dying with the supervisor, with default signals."""
    program_cgroup.enter()
    procfs.die_with_parent(death_signal)
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
