"""The end of an attempt as the controller brings it about: politely, at once, and on record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from runner.control.attempt.node import NodeState
from runner.control.rpc.session import HostSession
from runner.core.model.spec import Spec
from runner.core.outcome.verdict import TimedEvent
from runner.core.protocol.events import Event, EventBody, StopCause, Stopping, StopRequested
from runner.core.relaunch.policy import MAX_BACKOFF_S

SKIP_LOGS_AFTER = 2
"""After so many signals the user wants no more logs either."""

STOP_TIMEOUT_S = 16.0
"""What the hosts' own ladder may take beyond the grace (`host.following.DEAF_S`, and a margin)."""

DECISION_TIMEOUT_S = 90.0
"""How long hosts may look at themselves before the next attempt (see `host.election`)."""


class Phase(Protocol):
    """Where it is said what is going on."""

    def __call__(self, text: str, elapsed_s: float = 0.0) -> None:
        """Take what it is, and for how many seconds it has been so."""


@dataclass(frozen=True)
class RunObserver:
    """Where a watch reports to: the record, the logs, and the person."""

    record: Callable[[Event], None]
    log: Callable[[str, str, str, int, bytes], None]
    message: Callable[[str], None]
    phase: Phase
    node_status: Callable[[str, str], None]
    console_full: Callable[[], bool]
    mute: Callable[[], None]


class EventLog:
    """What happened in an attempt, on our clock, as hosts told it and as we saw it."""

    def __init__(self, run_id: str, attempt: int, record: Callable[[Event], None]) -> None:
        self.timed_events: list[TimedEvent] = []
        self._run_id, self._attempt, self._record = run_id, attempt, record
        self._seq = 0

    def append(self, at: float, event: Event) -> None:
        """Take an event of a host's, which happened `at` on our clock."""
        self.timed_events.append(TimedEvent(at, event))
        self._record(event)

    def record_own(self, name: str, body: EventBody, at: float | None = None) -> None:
        """Record what we saw or did ourselves, about the node `name`, now or `at`."""
        now = time.monotonic()
        mono = now if at is None else at
        wall = time.time() - (now - mono)
        self._seq += 1
        self.append(mono, Event(self._run_id, name, self._attempt, self._seq, wall, mono, body))


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
