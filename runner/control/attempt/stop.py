"""The end of an attempt as the controller brings it about: politely, at once, and on record."""

from __future__ import annotations

import time
from collections.abc import Mapping

from runner.control.attempt.event_log import EventLog
from runner.control.attempt.node import NodeState
from runner.control.attempt.observer import RunObserver
from runner.control.rpc.session import HostSession
from runner.core.model.spec import Spec
from runner.core.protocol.events import StopCause, Stopping, StopRequested
from runner.core.relaunch.policy import MAX_BACKOFF_S

SKIP_LOGS_AFTER = 2
"""After so many signals the user wants no more logs either."""

STOP_TIMEOUT_S = 16.0
"""What the hosts' own ladder may take beyond the grace (`host.following.DEAF_S`, and a margin)."""

DECISION_TIMEOUT_S = 90.0
"""How long hosts may look at themselves before the next attempt (see `host.election`)."""


class StopSequence:
    """The stop of one attempt.

    Attributes:
        requested: Why, and whose wish it is; None while nobody wants it.
        signal_count: How often the user asked.
        deadline: When the hosts must have said that nothing is left.
    """

    def __init__(
        self, spec: Spec, nodes: Mapping[str, NodeState], observer: RunObserver, event_log: EventLog
    ) -> None:
        self.requested: Stopping | None = None
        self.signal_count = 0
        self.deadline = float("inf")
        self._spec, self._nodes, self._observer, self._event_log = spec, nodes, observer, event_log

    def begin(self, reason: str, signum: int = 0, cause: StopCause = StopCause.PEER) -> None:
        """Have every host end its part, unless they do so already."""
        if signum:
            self._event_log.record_own("", StopRequested(reason, signum))
        if self.requested is not None:
            if cause is StopCause.USER and self.requested.cause is not StopCause.USER:
                self.requested = Stopping(reason, cause)  # nor shall it start once more
                self._send_to_all()
            return
        self.requested = Stopping(
            reason, StopCause.USER if cause is StopCause.USER else StopCause.PEER
        )
        self._observer.phase("stopping")
        for name, node in self._nodes.items():
            if not node.ended and not node.lost:
                self._observer.node_status(name, "stopping")
        self._observer.mute()
        if not signum:
            self._event_log.record_own("", StopRequested(reason))
            grace = f"; the ranks have up to {self._spec.grace_s:g} s to end"
            rest = grace if cause is StopCause.USER else "; stopping the rest"
            self._observer.message(f"{reason}{rest}")
        self.deadline = time.monotonic() + self._spec.grace_s + STOP_TIMEOUT_S
        self._send_to_all()

    def extend_deadline(self) -> None:
        """Nothing is left on a host; it may take the others a while to decide what follows."""
        longest = MAX_BACKOFF_S + self._spec.lost_s + self._spec.grace_s + DECISION_TIMEOUT_S
        self.deadline = time.monotonic() + longest

    def on_signal(self, signum: int) -> None:
        """Stop for the user; a second time at once, a third without the rest of the logs."""
        self.signal_count += 1
        if self.signal_count == 1:
            self.begin("interrupted", signum, StopCause.USER)
            grace = f"{self._spec.grace_s:g} s"
            self._observer.message(
                f"stopping: the ranks have up to {grace} to end; Ctrl-C again kills them now"
            )
            return
        self.deadline = time.monotonic() + STOP_TIMEOUT_S
        if self.signal_count > SKIP_LOGS_AFTER:
            self._skip_logs()
        self._send_to_all()
        unfinished = [name for name, node in self._nodes.items() if not node.ended]
        self._observer.message(f"killing what is left on {', '.join(unfinished) or 'no node'}")

    def send_to(self, session: HostSession) -> None:
        """Tell one host, if the end is wanted."""
        if self.requested is not None:
            command = "kill" if self.signal_count > 1 else "stop"
            details = {"reason": self.requested.reason, "cause": self.requested.cause.value}
            session.request("command", {"command": command, **details})

    def _send_to_all(self) -> None:
        for node in self._nodes.values():
            if not node.ended and node.live_session:
                self.send_to(node.live_session)

    def _skip_logs(self) -> None:
        """Fetch no more of what ended hosts wrote; the stop itself is never abandoned."""
        for name, node in self._nodes.items():
            if node.ended and not node.finished:
                node.finished = True
                self._observer.message(
                    f"{name}: the rest of its logs stays there, in cluster.workdir"
                )
