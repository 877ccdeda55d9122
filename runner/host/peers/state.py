"""State of a supervisor in an attempt, whole: the only message that supervisors exchange.

To hear one twice, late or out of order changes nothing: what is not newer is dropped.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass
from typing import Any, List, NamedTuple, Optional, Tuple

from runner.core.wire.run_info import PastAttempt
from runner.core.wire.states import Reason

LONG_S = 1e9  # for what JSON has no number: a host without ranks is stalled for ever
MAX_DETAIL = 1000  # characters: a state must fit in a link's first line


class Phase(enum.Enum):
    ACTIVE = "active"
    """It takes part, or stands by."""
    PENDING = "pending"
    """Nothing of the attempt is left on its host, which is proven; another one may follow."""
    ENDED = "ended"
    """Its part has ended, and it says nothing more."""
    DEAD = "dead"
    """Its supervisor was killed; its guardian says so."""


class LastHeard(NamedTuple):
    """When (monotonic) a host last heard any controller, and when the launch among them."""

    controller: float
    launch: float

    def merged(self, other: LastHeard) -> LastHeard:
        controller = max(self.controller, other.controller)
        return LastHeard(controller, max(self.launch, other.launch))


@dataclass(frozen=True)
class Departure:
    """A node was lost, and the attempt goes on with `nodes` others (0 if unknown)."""

    node: str
    start: int  # as in its own state
    reason: str
    silence_s: float
    nodes: int


@dataclass(frozen=True)
class Upcoming:
    attempt: int
    nodes: Tuple[str, ...]  # in rank order
    spares: Tuple[str, ...]
    past: PastAttempt


@dataclass(frozen=True)
class PeerState:
    run: str
    attempt: int
    node: str
    start: int  # how often its node has joined this attempt again
    counter: int  # CLOCK_BOOTTIME of its host, in ns
    phase: Phase
    controller_age_s: float = LONG_S
    launch_age_s: float = LONG_S
    stalled_s: Optional[float] = None  # of the hub: on all hosts; None if that is unknown
    detached: bool = False  # of the hub: decided; of a member: asked for
    stop: Optional[Reason] = None  # the attempt stops
    departed: Tuple[Departure, ...] = ()  # of the hub, as is what follows
    upcoming: Optional[Upcoming] = None  # until everybody has begun it
    refusal: str = ""  # why no attempt follows

    @property
    def age(self) -> Tuple[int, int]:
        return self.start, self.counter

    @property
    def departed_starts(self) -> List[Tuple[str, int]]:
        return [(each.node, each.start) for each in self.departed]

    @property
    def news(self) -> List[Any]:
        """What is sent at once when it changes: all but times."""
        decision = (self.upcoming, self.refusal)
        return [self.phase, self.detached, self.stop, self.departed_starts, decision]


def boot_time_ns() -> int:
    """Return the counter of a state of now; no supervisor on this host had a larger one."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
