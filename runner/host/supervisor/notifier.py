"""Notifier of a supervisor: tells of the end and of a stall where no launch does.

One process for each message, which records by itself what could not be told: the supervisor waits
for none, and a message about the end may outlive it, by no more than its own deadline.
"""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Set

from runner.core.wire.events import Ended, NotificationFailed
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.core.wire.states import (
    FAILED_CODE,
    INTERRUPTED_CODE,
    STOPPED,
    STUCK,
    STUCK_CODE,
    State,
)
from runner.core.wire.timing import HEARTBEAT_S, NOTIFICATION_TIMEOUT_S
from runner.host.process import procfs
from runner.host.process.bounded_child import BoundedChild
from runner.host.storage.run_folder import EventLog
from runner.host.supervisor.stop_ladder import StopLadder

if TYPE_CHECKING:
    from runner.core.wire.notification import Message, Subject

MARGIN_S = 5.0  # to end a command that does not
LAG_S = 1.5 * HEARTBEAT_S  # how late this host may hear of progress on another
MAX_STALLED_S = 1e8  # more is what a host says that has no rank left

MakeMessage = Callable[["Subject", float], "Message"]


class Notifier:
    """Tells of one attempt. Nobody is told where the order names nobody to tell."""

    def __init__(self, folder: RunPaths, order: Order, environ: Dict[str, str]) -> None:
        self._folder = folder
        self._order = order
        self._environ = environ
        self._began_at = time.monotonic()
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
        limit_s = self._order.stall_s
        if not limit_s or stalled_s is None or stalled_s > MAX_STALLED_S:
            return
        is_stalled = stalled_s >= limit_s + LAG_S
        if is_stalled and may_tell and not self._has_told_stall:
            self.tell(lambda subject, seconds: subject.stalled(stalled_s, seconds))
        self._has_told_stall = is_stalled and (may_tell or self._has_told_stall)

    def tell_end(self, end: Ended, ladder: StopLadder) -> None:
        """Tell of the end of the run, as far as this host knows it."""
        reason = ladder.reason or end.reason
        if end.state is State.STUCK or not end.verified:
            state = STUCK
            code = STUCK_CODE
        elif ladder.user_stopped:
            state = STOPPED
            code = INTERRUPTED_CODE
        elif reason is not None:
            state, code = reason.outcome
        else:
            state = end.state.value
            code = 0 if end.state is State.SUCCEEDED else FAILED_CODE
        self.tell(lambda subject, seconds: subject.ended(state, code, seconds, reason))

    def tell(self, make_message: MakeMessage) -> None:
        """Send a message to everyone who is to be told, from a child: whatever goes wrong there."""
        folder = self._folder
        order = self._order
        environ = self._environ
        notify = order.notify
        seconds = time.monotonic() - self._began_at
        if notify is None:
            return
        from runner.core.wire.notification import Subject, deliver  # noqa: PLC0415 (few runs need it)

        def send() -> None:
            procfs.close_fds_except({0, 1, 2})  # such as the lock of the run
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a command need not read its input
            secrets = tuple(environ[name] for name in notify.secrets if name in environ)
            subject = Subject(order.run_id, order.attempt, notify, secrets, told_by=order.node)
            message = make_message(subject, seconds)
            failed = deliver(notify.targets, message, environ, folder.root, secrets)
            journal = EventLog(folder, order) if failed else None
            for target, reason in failed:
                if journal is not None:
                    journal.append(NotificationFailed(target, reason, message["event"]))

        with contextlib.suppress(OSError):  # there can be no more processes
            self._children.append(BoundedChild(send, NOTIFICATION_TIMEOUT_S + MARGIN_S))
