"""Event log of an attempt: events of the hosts and of the controller, on the controller's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from runner.core.outcome.results import TimedEvent
from runner.core.protocol.events import Event, EventBody


class EventLog:
    """The events of one attempt so far, each with its time on our monotonic clock."""

    def __init__(self, run_id: str, attempt: int, record: Callable[[Event], None]) -> None:
        self.timed_events: list[TimedEvent] = []
        self._run_id, self._attempt, self._record = run_id, attempt, record
        self._seq = 0

    def append(self, at: float, event: Event) -> None:
        """Add an event that happened `at` on our clock."""
        self.timed_events.append(TimedEvent(at, event))
        self._record(event)

    def record_own(self, name: str, body: EventBody, at: float | None = None) -> None:
        """Record what the controller saw or did, about the node `name`, now or `at`."""
        now = time.monotonic()
        mono = now if at is None else at
        wall = time.time() - (now - mono)
        self._seq += 1
        self.append(mono, Event(self._run_id, name, self._attempt, self._seq, wall, mono, body))
