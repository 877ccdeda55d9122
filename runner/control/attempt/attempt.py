"""Attempt under way, as its controller sees it: plan, nodes, events so far, and who is told."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from runner.control.attempt.node import AttemptNode
from runner.control.rpc.session import HostSession
from runner.core.spec import Spec
from runner.core.wire.events import Event, EventBody, TimedEvent
from runner.core.wire.plan import Plan


class Role(enum.Enum):
    """What a controller may do to the attempt that it monitors."""

    LAUNCH = "launch"  # it started the attempt, declares nodes lost, and stops the others then
    ATTACH = "attach"  # it joined later: it may stop the attempt, and declares no node lost
    READ_ONLY = "read only"  # it stops nothing, and renews no controller lease


class Console(Protocol):
    """Where a person sees what becomes of a run."""

    @property
    def is_full(self) -> bool:
        """Whether more waits to be shown than it needs."""

    def phase(self, text: str, elapsed_s: float = 0.0) -> None: ...

    def node_status(self, node: str, text: str) -> None: ...

    def mute(self) -> None:
        """Drop ranks' output from now on where it is too much."""

    @property
    def reader_gone(self) -> bool:
        """Whether nobody reads the output any more."""

    def message(self, text: str) -> None:
        """Show what happens."""

    def verdict(self, text: str, colours: Mapping[str, str] | None = None) -> None:
        """Show how it ended."""

    def begin_attempt(self, pattern: str, work_folders: Mapping[str, str]) -> None:
        """Note how far ranks say they are by `pattern`, and where each node has the code."""

    def rank_output(self, node: str, rank: int, stream: str, data: bytes) -> None:
        """Show what a rank wrote."""

    def rank_metrics(self, node: str, rank: int, data: bytes) -> None:
        """Take the metrics of a rank."""

    def reset_lines(self) -> None:
        """Take the next output of each rank as the beginning of a line."""

    def flush_ranks(self, deadline_s: float = 0.0) -> None:
        """Show what is left of the output of the ranks."""

    def close(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Show what waits until `give_up`, and end."""


@dataclass
class Attempt:
    """One attempt; its monitor changes the states of its nodes."""

    spec: Spec
    plan: Plan
    sessions: dict[str, HostSession]  # of nodes and spares
    console: Console
    record: Callable[[Event], None]
    log: Callable[[str, str, str, int, bytes], None]  # takes node, source, stream, offset, bytes
    say: Callable[[str], None]
    role: Role = Role.LAUNCH
    nodes: dict[str, AttemptNode] = field(default_factory=dict)
    timed_events: list[TimedEvent] = field(default_factory=list)
    own_events: int = 0  # how many of these are the controller's

    @property
    def is_launch(self) -> bool:
        return self.role is Role.LAUNCH

    def is_silent(self, name: str) -> bool:
        """Return whether nothing is heard from a node or a spare any more."""
        session = self.sessions.get(name)
        return session is None or session.closed or session.idle_s > self.spec.lost_s

    def append(self, at: float, event: Event) -> None:
        """Add an event that happened `at` on our monotonic clock."""
        self.timed_events.append(TimedEvent(at, event))
        self.record(event)

    def record_own(self, name: str, body: EventBody, at: float | None = None) -> None:
        """Record what the controller saw or did, about the node `name`, now or `at`."""
        mono = time.monotonic() if at is None else at
        wall = time.time() - (time.monotonic() - mono)
        self.own_events += 1
        event = Event(
            run_id=self.plan.run_id,
            node=name,
            attempt=self.plan.attempt,
            seq=self.own_events,
            wall=wall,
            mono=mono,
            body=body,
        )
        self.append(mono, event)
