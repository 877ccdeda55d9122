"""Notifier of a supervisor: tells of the end and of a stall where no launch does.

One process for each message, which records by itself what could not be told: the supervisor waits
for none, and a message about the end may outlive it, by no more than its own deadline.
"""

from __future__ import annotations

import contextlib
import signal
from typing import Dict, List, Optional, Set

from runner.core.wire.events import Ended
from runner.core.wire.notification import Message, Teller
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.core.wire.states import FAILED_CODE, STUCK, STUCK_CODE, Reason, ReasonKind, State
from runner.core.wire.timing import HEARTBEAT_S, NOTIFICATION_TIMEOUT_S
from runner.host.process import procfs
from runner.host.process.bounded_child import BoundedChild
from runner.host.storage.run_folder import EventLog
from runner.host.supervisor.stop_ladder import StopLadder

MARGIN_S = 5.0  # to end a command that does not
LAG_S = 1.5 * HEARTBEAT_S  # how late this host may hear of progress on another
MAX_STALLED_S = 1e8  # more is what a host says that has no rank left


class Notifier(Teller):
    """Tells of one attempt, where the order names somebody to tell."""

    def __init__(self, folder: RunPaths, order: Order, environ: Dict[str, str]) -> None:
        super().__init__(order, environ, cwd=folder.root, name=order.node)
        self._folder = folder
        self._children: List[BoundedChild] = []
        self._has_told_stall = False

    @property
    def pids(self) -> Set[int]:
        """The processes that tell, which do not belong to the run."""
        pids = {child.pid for child in self._children if child.code is None}
        return pids.union(*(procfs.descendants(pid) for pid in pids))

    def watch(self, stalled_s: Optional[float], *, may_tell: bool) -> None:
        """Tell once that no rank of the whole run has made progress, if it is up to this host.

        A run without ranks has no stall, nor has one of which a part is not known.
        """
        for child in self._children:
            child.advance()
        self._children = [child for child in self._children if child.code is None]
        limit_s = self.order.stall_s
        if not limit_s or stalled_s is None or stalled_s > MAX_STALLED_S:
            return
        is_stalled = stalled_s >= limit_s + LAG_S
        if is_stalled and may_tell and not self._has_told_stall:
            self.tell("running", stalled_s=stalled_s)
        self._has_told_stall = is_stalled and (may_tell or self._has_told_stall)

    def tell_end(self, end: Ended, ladder: StopLadder) -> None:
        """Tell of the end of the run, as far as this host knows it."""
        reason = ladder.reason or end.reason
        state = end.state.value
        code = 0 if end.state is State.SUCCEEDED else FAILED_CODE
        if end.state is State.STUCK or not end.verified:
            state = STUCK
            code = STUCK_CODE
        elif ladder.user_stopped:
            state, code = Reason(ReasonKind.USER).outcome
        elif reason is not None:
            state, code = reason.outcome
        self.tell(state, code, reason)

    def _send(self, message: Message) -> None:
        def send() -> None:
            procfs.close_fds_except({0, 1, 2})  # such as the lock of the run
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a command need not read its input
            if failed := self.deliver(message):
                journal = EventLog(self._folder, self.order)
                for failure in failed:
                    journal.append(failure)

        with contextlib.suppress(OSError):  # there can be no more processes
            self._children.append(BoundedChild(send, NOTIFICATION_TIMEOUT_S + MARGIN_S))
