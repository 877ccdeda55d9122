"""Observer of an attempt: the role of this controller, where it reports to, and its event log."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from runner.core.planning.build_plan import FoldNames
from runner.core.wire.events import Event, EventBody, TimedEvent


class Role(enum.Enum):
    """What a controller may do to the attempt that it monitors."""

    LAUNCH = "launch"  # it started the attempt, declares nodes lost, and stops the others then
    ATTACH = "attach"  # it joined later: it may stop the attempt, and declares no node lost
    READ_ONLY = "read only"  # it stops nothing, and renews no controller lease

    @property
    def may_stop(self) -> bool:
        """Whether it may stop the attempt."""
        return self is not Role.READ_ONLY


class Console(Protocol):
    """Where a person sees what becomes of an attempt."""

    @property
    def is_full(self) -> bool:
        """Whether more waits to be shown than it needs."""

    def phase(self, text: str, elapsed_s: float = 0.0) -> None:
        """Note what the attempt is doing, and for how long."""

    def node_status(self, node: str, text: str) -> None:
        """Note the state of a node."""

    def mute(self) -> None:
        """Drop ranks' output from now on where it is too much."""


@dataclass(frozen=True)
class RunObserver:
    """What the record and the console take from the monitor of an attempt."""

    record: Callable[[Event], None]
    log: Callable[[str, str, str, int, bytes], None]
    message: Callable[[str], None]
    console: Console
    fold_names: FoldNames = ", ".join


class AttemptLog:
    """The events of one attempt so far, each with its time on our monotonic clock."""

    def __init__(self, run_id: str, attempt: int, record: Callable[[Event], None]) -> None:
        self.timed_events: list[TimedEvent] = []
        self._run_id = run_id
        self._attempt = attempt
        self._record = record
        self._seq = 0

    def append(self, at: float, event: Event) -> None:
        """Add an event that happened `at` on our clock."""
        self.timed_events.append(TimedEvent(at, event))
        self._record(event)

    def record_own(self, name: str, body: EventBody, at: float | None = None) -> None:
        """Record what the controller saw or did, about the node `name`, now or `at`."""
        mono = time.monotonic() if at is None else at
        wall = time.time() - (time.monotonic() - mono)
        self._seq += 1
        self.append(mono, Event(self._run_id, name, self._attempt, self._seq, wall, mono, body))
