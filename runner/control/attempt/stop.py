"""Stop of an attempt: on the first signal or failure; kill on the second signal; and time out."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping

from runner.control.attempt.attempt import Attempt
from runner.control.rpc.session import HostSession
from runner.core.errors import fold_names
from runner.core.wire.codec import encode
from runner.core.wire.events import StopRequested
from runner.core.wire.states import Reason, ReasonKind
from runner.core.wire.text import signal_name
from runner.core.wire.timing import (
    DECISION_TIMEOUT_S,
    ENGINE_TIMEOUT_S,
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
    def __init__(self, attempt: Attempt) -> None:
        self.requested: Reason | None = None
        self.signal_count = 0  # how often the user asked by a signal
        self.deadline = float("inf")  # when every host must have reported its end
        self._attempt = attempt
        self._sent: dict[str, int] = {}  # the last request to each node
        self._confirmed: set[str] = set()  # the nodes whose supervisor was handed that
        self._confirm_by = float("inf")
        self._is_extended = False
        self._unnamed: Reason | None = None  # that of a stop, which is not shown yet
        self._name_at = float("inf")
        self._grace = f"the ranks have up to {attempt.spec.grace_s:g} s to end"
        engine_s = ENGINE_TIMEOUT_S if attempt.spec.container.engine else 0.0
        self._timeout_s = STOP_TIMEOUT_S + engine_s

    def begin(self, reason: Reason, signum: int = 0) -> None:
        """Have every host stop its part, unless that is under way."""
        attempt = self._attempt
        if signum:
            attempt.record_own("", StopRequested(reason, signum))
        if self.requested is not None:
            is_known = self.requested.is_by_user or self.requested.kind is reason.kind
            if reason.is_final and not is_known:
                self.requested = reason  # which rules out a relaunch too
                self._send_to_all()
            return
        self.requested = reason
        attempt.console.phase("stopping")
        for name in self._running():
            attempt.console.node_status(name, "stopping")
        attempt.console.mute()
        if not signum:
            attempt.record_own("", StopRequested(reason))
            if reason.is_by_user:
                attempt.say(f"{reason.text}; {self._grace}")
            else:
                self._unnamed = reason
                self._name_at = time.monotonic() + FIRST_FAILURE_S
        self.deadline = time.monotonic() + attempt.spec.grace_s + self._timeout_s
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
                self._attempt.say(f"{reason.text}; stopping the rest")

    def extend_deadline(self) -> None:
        """Give the hosts time, once, to decide about a relaunch; one of them has ended."""
        if self._is_extended or self.signal_count > 1:
            return
        self._is_extended = True
        spec = self._attempt.spec
        longest = MAX_BACKOFF_S + spec.lost_s + spec.grace_s + DECISION_TIMEOUT_S
        self.deadline = time.monotonic() + longest

    def on_signal(self, signum: int) -> bool:
        """Stop, or kill at the second signal; return whether to skip the rest of the logs."""
        attempt = self._attempt
        self.signal_count += 1
        if self.signal_count == 1:
            cause = SIGNALS_OF_USERS.get(signum) or signal_name(signum)
            self.begin(Reason(ReasonKind.USER, detail=f"interrupted by {cause}"), signum)
            attempt.say(f"stopping: {self._grace}; Ctrl-C again kills them now")
            return False
        self.deadline = time.monotonic() + self._timeout_s
        self._send_to_all()
        unfinished = [name for name, node in attempt.nodes.items() if not node.has_ended]
        names = fold_names(unfinished)
        attempt.say(f"killing what is left on {names or 'no node'}")
        return self.signal_count > SKIP_LOGS_AFTER

    def on_command_sent(self, name: str, request_id: int) -> None:
        """Note that a node's agent has handed a command to the supervisor."""
        if self._sent.get(name) == request_id:
            self._confirmed.add(name)

    def _running(self) -> list[str]:
        nodes = self._attempt.nodes.items()
        return [name for name, node in nodes if not (node.has_ended or node.is_lost)]

    @property
    def unconfirmed(self) -> list[str]:
        """The nodes that have neither ended nor been handed the stop."""
        return [name for name in self._running() if name not in self._confirmed]

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
        for node in self._attempt.nodes.values():
            session = node.live_session
            if session and not node.has_ended:
                self.send_to(session)


def send_stop(session: HostSession, reason: Reason, command: str = "stop") -> int:
    """Ask the supervisor of one host to stop, or to kill at once with `command` "kill".

    Return the id of the request.
    """
    return session.request("command", {"command": command, "reason": encode(reason)})
