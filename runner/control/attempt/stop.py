"""Stop and detach of an attempt: stop on the first signal, kill on the second, and time out."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping

from runner.control.attempt.node import AttemptNode
from runner.control.attempt.observer import AttemptLog, RunObserver
from runner.control.attempt.peer_status import PeerStatus
from runner.control.rpc.session import HostSession
from runner.core.spec import Spec
from runner.core.wire.codec import encode
from runner.core.wire.events import StopRequested
from runner.core.wire.states import Reason, ReasonKind
from runner.core.wire.text import signal_name
from runner.core.wire.timing import (
    DECISION_TIMEOUT_S,
    ENGINE_TIMEOUT_S,
    HUB_REPORT_TIMEOUT_S,
    MAX_BACKOFF_S,
    STOP_TIMEOUT_S,
)

SIGNALS_OF_USERS: Mapping[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGHUP: "a closed terminal"}

FIRST_FAILURE_S = 0.5
"""How long after the first report a failure is named: that of an earlier one may be slower."""

SKIP_LOGS_AFTER = 2
"""After more signals than this, the rest of the logs is skipped too."""

CONFIRM_TIMEOUT_S = 3.0
"""How long hosts may take to confirm a stop or the detach before the controller leaves."""


class StopSequence:
    """The stop of one attempt."""

    def __init__(
        self,
        spec: Spec,
        nodes: Mapping[str, AttemptNode],
        observer: RunObserver,
        event_log: AttemptLog,
    ) -> None:
        self.requested: Reason | None = None
        self.signal_count = 0  # how often the user asked by a signal
        self.deadline = float("inf")  # when every host must have reported its end
        self._sent: dict[str, int] = {}  # the last request to each node
        self._confirmed: set[str] = set()  # the nodes whose supervisor was handed that
        self._confirm_by = float("inf")
        self._is_extended = False
        self._unnamed: Reason | None = None  # that of a stop, which is not shown yet
        self._name_at = float("inf")
        self._spec = spec
        self._timeout_s = STOP_TIMEOUT_S + (ENGINE_TIMEOUT_S if spec.container.engine else 0.0)
        self._nodes = nodes
        self._observer = observer
        self._event_log = event_log

    def begin(self, reason: Reason, signum: int = 0) -> None:
        """Have every host stop its part, unless that is under way."""
        if signum:
            self._event_log.record_own("", StopRequested(reason, signum))
        if self.requested is not None:
            is_known = self.requested.is_by_user or self.requested.kind is reason.kind
            if reason.is_final and not is_known:
                self.requested = reason  # which rules out a relaunch too
                self._send_to_all()
            return
        self.requested = reason
        self._observer.console.phase("stopping")
        for name, node in self._nodes.items():
            if not node.has_ended and not node.is_lost:
                self._observer.console.node_status(name, "stopping")
        self._observer.console.mute()
        if not signum:
            self._event_log.record_own("", StopRequested(reason))
            if reason.is_by_user:
                grace = f"the ranks have up to {self._spec.grace_s:g} s to end"
                self._observer.message(f"{reason.text}; {grace}")
            else:
                self._unnamed = reason
                self._name_at = time.monotonic() + FIRST_FAILURE_S
        self.deadline = time.monotonic() + self._spec.grace_s + self._timeout_s
        self._send_to_all()

    def name_reason(
        self, first_failure: Callable[[], Reason | None], *, at_once: bool = False
    ) -> None:
        """Show why the attempt is stopped, once the reports of all hosts had time to arrive.

        `first_failure` returns it as far as it is known by then.
        """
        if self._unnamed and (at_once or time.monotonic() >= self._name_at):
            reason = first_failure() or self._unnamed
            self._unnamed = None
            if reason.kind is not ReasonKind.STALL:  # that is shown with the stacks
                self._observer.message(f"{reason.text}; stopping the rest")

    def extend_deadline(self) -> None:
        """Give the hosts time, once, to decide about a relaunch; one of them has ended."""
        if self._is_extended or self.signal_count > 1:
            return
        self._is_extended = True
        longest = MAX_BACKOFF_S + self._spec.lost_s + self._spec.grace_s + DECISION_TIMEOUT_S
        self.deadline = time.monotonic() + longest

    def on_signal(self, signum: int) -> bool:
        """Stop, or kill at the second signal; return whether to skip the rest of the logs."""
        self.signal_count += 1
        if self.signal_count == 1:
            cause = SIGNALS_OF_USERS.get(signum) or signal_name(signum)
            self.begin(Reason(ReasonKind.USER, detail=f"interrupted by {cause}"), signum)
            grace = f"the ranks have up to {self._spec.grace_s:g} s to end"
            self._observer.message(f"stopping: {grace}; Ctrl-C again kills them now")
            return False
        self.deadline = time.monotonic() + self._timeout_s
        self._send_to_all()
        unfinished = [name for name, node in self._nodes.items() if not node.has_ended]
        names = self._observer.fold_names(unfinished)
        self._observer.message(f"killing what is left on {names or 'no node'}")
        return self.signal_count > SKIP_LOGS_AFTER

    def on_command_sent(self, name: str, request_id: int) -> None:
        """Note that a node's agent has handed a command to the supervisor."""
        if self._sent.get(name) == request_id:
            self._confirmed.add(name)

    @property
    def unconfirmed(self) -> list[str]:
        """The nodes that have neither ended nor been handed the stop."""
        nodes = self._nodes.items()
        running = (name for name, node in nodes if not (node.has_ended or node.is_lost))
        return [name for name in running if name not in self._confirmed]

    @property
    def may_leave(self) -> bool:
        """Whether the hosts do without this controller: all know of the stop, or had time to."""
        had_time = time.monotonic() >= self._confirm_by
        return self.requested is None or had_time or not self.unconfirmed

    def send_to(self, session: HostSession) -> None:
        """Send the stop to one host, if one is requested."""
        if self.requested is not None:
            command = "kill" if self.signal_count > 1 else "stop"
            name = session.node.name
            self._sent[name] = send_stop(session, self.requested.as_told_to(name), command)
            self._confirmed.discard(name)

    def _send_to_all(self) -> None:
        self._confirm_by = time.monotonic() + CONFIRM_TIMEOUT_S
        for node in self._nodes.values():
            if not node.has_ended and node.live_session:
                self.send_to(node.live_session)


def user_at_host() -> str:
    """Return the user and the machine of this process, as user@machine."""
    user = str(os.getuid())
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        user = getpass.getuser()
    return f"{user}@{socket.gethostname()}"


def send_stop(session: HostSession, reason: Reason, command: str = "stop") -> int:
    """Ask the supervisor of one host to stop, or to kill at once with `command` "kill".

    Return the id of the request.
    """
    return session.request("command", {"command": command, "reason": encode(reason)})


class DetachSequence:
    """The detach of one attempt, and the spares that stand by for it."""

    def __init__(
        self,
        nodes: Mapping[str, AttemptNode],
        sessions: Mapping[str, HostSession],
        peer_status: PeerStatus,
    ) -> None:
        self.is_requested = False  # once the attempt runs
        self.has_begun = False
        self._standbys: tuple[str, ...] = ()
        self._nodes = nodes
        self._sessions = sessions
        self._peer_status = peer_status
        self._deadline = float("inf")

    def expect_standbys(self, names: Iterable[str]) -> None:
        """Note which spares get a standby order."""
        self._standbys = tuple(names)
        self._peer_status.pending_standbys = {*self._standbys}

    def is_possible(self, all_started_at: float | None) -> bool:
        """Return whether every host has joined the hub, reported that it cannot, or timed out."""
        if all_started_at is None:
            return False
        is_late = time.monotonic() - all_started_at > HUB_REPORT_TIMEOUT_S
        return self._peer_status.all_reported or is_late

    def begin(self, exclude: Iterable[str]) -> None:
        """Tell every host but `exclude`, to which the hub will forward it."""
        self.has_begun = True
        self._deadline = time.monotonic() + CONFIRM_TIMEOUT_S
        for name, node in self._nodes.items():
            is_excluded = name in self._peer_status.detached or name in exclude
            if node.live_session and not is_excluded:
                node.live_session.request("command", {"command": "detach"})
        for session in self.standby_sessions(self._peer_status.pending_standbys):
            session.request("command", {"command": "detach"})

    @property
    def is_complete(self) -> bool:
        """Whether every host confirmed it, or had time to."""
        return self._peer_status.all_detached or time.monotonic() >= self._deadline

    def stop_standbys(self) -> None:
        """Release the spares of an attempt that is over: its hub may be gone too early to do so."""
        for session in self.standby_sessions(set()):
            send_stop(session, Reason(ReasonKind.OTHER, detail="the attempt is over"))

    def standby_sessions(self, exclude: set[str]) -> list[HostSession]:
        """Return the sessions of the spares that stand by, but for these."""
        names = (name for name in self._standbys if name not in exclude)
        return [self._sessions[name] for name in names if name in self._sessions]
