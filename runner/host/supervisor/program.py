"""The program of an order: started once, and seen to its end."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from typing import Dict, List, Optional, Tuple

from runner.core.model.order import Order
from runner.core.protocol.events import ProgramExited, ProgramStarted
from runner.core.protocol.paths import PROGRAM, RunFolder
from runner.host.process import procfs
from runner.host.process.cgroup import Cgroup
from runner.host.storage.run_folder import Journal

End = Tuple[Optional[int], Optional[int]]
"""An exit code, or a signal; neither for a program that never began."""

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class Program:
    """One process, with whatever it starts.

    Attributes:
        pid: Its number; 0 before it began.
        end: How it ended; None while it has not.
    """

    def __init__(self, folder: RunFolder, order: Order, journal: Journal) -> None:
        self.pid = 0
        self.end: Optional[End] = None
        self._folder, self._order, self._journal = folder, order, journal
        self._process: Optional[subprocess.Popen[bytes]] = None

    @property
    def begun(self) -> bool:
        """Whether it was started, well or not, or is never to be."""
        return bool(self.pid) or self.end is not None

    @property
    def runs(self) -> bool:
        """Whether it is on."""
        return bool(self.pid) and self.end is None

    def start(self, environ: Dict[str, str], home: Cgroup) -> bool:
        """Start it in that cgroup; return whether that went well."""
        order = self._order
        # A rank shim takes no notice of TERM; its own death ends its rank.
        dies_by = signal.SIGTERM if order.launcher else signal.SIGKILL
        try:
            out, err = (
                os.open(self._folder.stream(order.attempt, PROGRAM, stream), _APPEND, 0o600)
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
                preexec_fn=functools.partial(before_exec, home, dies_by),  # noqa: PLW1509 (this process has one thread)
            )
        except OSError as error:
            what = f"cannot start {order.argv[0]} in {order.cwd}: {error.strerror}"
            self._journal.append(ProgramExited(error=what))
            self.end = (None, None)
            return False
        os.close(out)
        os.close(err)
        self.pid = self._process.pid
        place = home.path if home.holds(self.pid) else ""
        self._journal.append(ProgramStarted(self.pid, place, order.again))
        return True

    def took(self, pid: int, status: int) -> bool:
        """Whether it was this process that was reaped with that status."""
        if self._process is None or pid != self.pid:
            return False
        self.end = procfs.note_end(self._process, status)
        return True

    def never(self) -> None:
        """It is not to begin any more."""
        if not self.begun:
            self.end = (None, None)

    def hearers(self) -> List[int]:
        """Return who gets TERM: a launcher alone, since it forwards; else the whole session.

        And the rank, where it has a session of its own.
        """
        if self._order.launcher:
            return [self.pid]
        session = [pid for pid, each in procfs.table().items() if each.session == self.pid]
        return sorted({*session, *self.rank()})

    def rank(self) -> List[int]:
        """Return the rank that no launcher starts, once it is on: the child of its shim."""
        if self._order.launcher or not self.runs:
            return []
        return [pid for pid, each in procfs.table().items() if each.ppid == self.pid]


def before_exec(home: Cgroup, dies_by: signal.Signals) -> None:
    """Make a new process ours: in our cgroup, dying with us, with no handler of ours."""
    home.enter()
    procfs.die_with_parent(dies_by)
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
