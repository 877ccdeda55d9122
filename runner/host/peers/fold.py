"""Fold of states: what a hub or a member concludes from those that it has, and from the clock.

A state is all that a supervisor has to say: the only message between them. To hear one twice, late
or out of order changes nothing: what is not newer is dropped.

Pure: the caller says what has arrived, what its own state is, and what time it is.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple, Union

from runner.core.wire.events import HubJoined, HubUnreachable, PeerDeparted, PeerLost
from runner.core.wire.order import Hub, Order, is_indispensable, nodes_after_loss
from runner.core.wire.run_info import PastAttempt
from runner.core.wire.states import Reason, ReasonKind
from runner.core.wire.timing import HEARTBEAT_S, HUB_TIMEOUT_S, JOIN_TIMEOUT_S, FailureDetector

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
    left: PeerDeparted
    start: int  # as in the state of the node that left


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

    def is_newer_than(self, other: PeerState) -> bool:
        return (self.start, self.counter) > (other.start, other.counter)

    @property
    def departed_starts(self) -> List[Tuple[str, int]]:
        return [(each.left.peer, each.start) for each in self.departed]

    @property
    def news(self) -> List[Any]:
        """What is sent at once when it changes: all but times."""
        decision = (self.upcoming, self.refusal)
        return [self.phase, self.detached, self.stop, self.departed_starts, decision]


def boot_time_ns() -> int:
    """Return the counter of a state of now; no supervisor on this host had a larger one."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


News = Union[PeerState, Reason, PeerLost, PeerDeparted, HubJoined, HubUnreachable]
"""Each new state, before what is concluded from it; a reason for which the others stop; losses;
the attempt goes on without a node; the hub was reached, or cannot be."""


@dataclass(frozen=True)
class Heard:
    state: PeerState
    at: float


class Fold:
    """What hub and members have in common.

    Attributes:
        is_stopping: Whether this host stops.
        hub_finished: On a member: the hub has ended, or was declared lost.
    """

    def __init__(self, order: Order, hub: Hub, tell: Callable[[News], None], now: float) -> None:
        self.heartbeat_s = min(HEARTBEAT_S, hub.lost_s / 5)
        self.silence_s = max(2.5 * self.heartbeat_s, hub.lost_s / 3)
        """After so much of it a new connection is worth a try: TCP waits longer."""
        self.heard: Dict[str, Heard] = {}  # by node
        self.is_stopping = False
        self.hub_finished = False
        self._order = order
        self._hub = hub
        self._tell = tell
        self._began_at = now
        self._detector = FailureDetector(hub.lost_s)

    def take(self, state: PeerState, now: float) -> bool:
        """Take a state, and return whether it is a new one of this attempt."""
        previous = self.heard.get(state.node)
        is_news = previous is None or state.is_newer_than(previous.state)
        if state.run != self._order.run_id or not (is_news and self._concerns_us(state)):
            return False
        if state.attempt != self._order.attempt:
            return self._take_of_other_attempt(state)
        self.heard[state.node] = Heard(state, now)
        self._tell(state)
        self._conclude(state, previous.state if previous is not None else None)
        return True

    def _concerns_us(self, state: PeerState) -> bool:
        return state.node != self._order.node

    def _take_of_other_attempt(self, state: PeerState) -> bool:
        raise NotImplementedError

    def _conclude(self, state: PeerState, previous: Optional[PeerState]) -> None:
        raise NotImplementedError

    def _take_stop(self, state: PeerState, previous: Optional[PeerState]) -> None:
        if state.stop is not None and (previous is None or previous.stop != state.stop):
            self._tell(state.stop)


class Gone(NamedTuple):
    """A member that was lost, or did not join."""

    start: int  # which start of it; -1 if it did not join
    since: float  # its last sign of life, or when that was declared
    left: Optional[PeerDeparted] = None  # if the attempt goes on without it


class HubFold(Fold):
    def __init__(self, order: Order, hub: Hub, tell: Callable[[News], None], now: float) -> None:
        super().__init__(order, hub, tell, now)
        self._gone: Dict[str, Gone] = {}
        self._required: Set[str] = set()  # members that must join soon
        self.first_to_stop = ""  # the member that stopped before all others, and before the hub

    def check(self, now: float, _: Optional[Exception] = None) -> None:
        """Declare members lost that are silent, or did not join."""
        if not self._detector.check(now):
            return
        for name in self._in_phase(Phase.ACTIVE, Phase.PENDING):
            silence_s = now - self.heard[name].at
            if self._detector.is_lost(silence_s):
                self._lose(name, f"nothing was heard from it for {silence_s:.0f} s", silence_s)
        if now > self._began_at + JOIN_TIMEOUT_S:
            missing = sorted(self._required)
            self._required.clear()
            for name in missing:
                self._gone[name] = Gone(-1, now)  # and it ends what it may have started
                self._tell(PeerLost(name, f"it did not start within {JOIN_TIMEOUT_S:g} s"))

    def stalled_s(self, own_s: float, now: float) -> Optional[float]:
        """Return for how long no rank has made progress on any host; None if that is unknown."""
        progress_at = [now - own_s]
        for name in self._in_phase(Phase.ACTIVE):
            heard = self.heard[name]
            if name not in self._hub.spares and now - heard.at > self.silence_s:
                return None
            progress_at.append(heard.at - min(heard.state.stalled_s or 0.0, LONG_S))
        return now - max(progress_at) if self._has_met_all else None

    def depart(self, left: PeerDeparted, last_seen: float) -> None:
        """Go on without a node, and tell the members so."""
        heard = self.heard.get(left.peer)
        start = heard.state.start if heard is not None else 0
        self._gone[left.peer] = Gone(start, last_seen, left)

    def departed(self, now: float) -> Tuple[Departure, ...]:
        return tuple(
            Departure(replace(gone.left, silence_s=now - gone.since), gone.start)
            for gone in self._gone.values()
            if gone.left is not None
        )

    def is_awaited(self, now: float) -> bool:
        """Return whether a member still takes part, or may be about to join."""
        is_late = now - self._began_at > HUB_TIMEOUT_S
        members = {*self._in_phase(Phase.ACTIVE)}.difference(self._hub.spares)
        return bool(members) or not (self._has_met_all or is_late)

    def expect(self, names: Iterable[str]) -> None:
        """Take members as lost that do not join in time: no controller watches over them."""
        self._required = {*names}

    @property
    def _has_met_all(self) -> bool:
        known = {*self.heard, *self._gone}.difference(self._hub.spares)
        return len(known) >= self._order.nnodes - 1

    def knows(self, name: str) -> bool:
        return name in self.heard or name in self._gone

    # After the end of the attempt

    @property
    def proven(self) -> List[str]:
        """Those that answer, and have proved their end."""
        return self._in_phase(Phase.PENDING)

    def is_one_unproven(self, now: float, patience_s: float) -> bool:
        """Return whether ranks may be left: of who answers, or has been silent for less than that.

        A node that is cut off ends its ranks within `patience_s`.
        """
        if self._in_phase(Phase.ACTIVE):
            return True
        since = [gone.since for gone in self._gone.values() if gone.start < 0]
        lost = [self.heard[name] for name in self._gone if name in self.heard]
        since += [heard.at for heard in lost if heard.state.phase in (Phase.ACTIVE, Phase.DEAD)]
        return any(now - at < patience_s for at in since)

    def _in_phase(self, *phases: Phase) -> List[str]:
        names = [name for name, heard in self.heard.items() if heard.state.phase in phases]
        return [name for name in names if name not in self._gone]

    def _take_of_other_attempt(self, state: PeerState) -> bool:
        """Answer who has not heard of the attempt that has begun: a link is all that it needs."""
        return state.attempt == self._order.attempt - 1 and state.node not in self.heard

    def _conclude(self, state: PeerState, previous: Optional[PeerState]) -> None:
        name = state.node
        if name in self._gone and self._gone[name].start < state.start:  # it joined again
            del self._gone[name]
        if name in self._gone:
            return
        self._required.discard(name)
        if state.phase is Phase.DEAD:
            self._lose(name, state.stop.detail if state.stop else "its supervisor died")
            return
        if state.stop is not None and not self.is_stopping:
            self.first_to_stop = self.first_to_stop or name
        self._take_stop(state, previous)

    def _lose(self, name: str, reason: str, silence_s: float = 0.0) -> None:
        """Stop since a member is gone; unless it stood by, or the run may continue without it."""
        heard = self.heard[name]
        self._gone[name] = Gone(heard.state.start, heard.at)
        if name in self._hub.spares:
            return
        count = 1 + len({*self._in_phase(Phase.ACTIVE)}.difference(self._hub.spares))
        if self.is_stopping or not nodes_after_loss(self._order, name, count):
            self._tell(PeerLost(name, reason, silence_s=silence_s))
            return
        left = PeerDeparted(name, reason, count, silence_s=silence_s)
        self.depart(left, heard.at)
        self._tell(left)


class MemberFold(Fold):
    """The conclusions of a member, which hears the hub alone."""

    upcoming: Optional[Upcoming] = None  # what the hub says follows
    _reported_unreachable = False

    @property
    def hub_state(self) -> Optional[PeerState]:
        """What the hub said last; None before it has been reached."""
        heard = self.heard.get(self._hub.node)
        return heard.state if heard is not None else None

    def check(self, now: float, error: Optional[Exception] = None) -> None:
        """Declare the hub lost if it is silent; `error` is why nothing is heard from it."""
        if self.hub_finished:
            return
        may_judge = self._detector.check(now)
        heard = self.heard.get(self._hub.node)
        silence_s = now - (heard.at if heard is not None else self._began_at)
        if heard is not None and isinstance(error, ConnectionRefusedError):
            self._lose("its supervisor is gone")  # nothing listens on its host any more
        elif may_judge and heard is not None and self._detector.is_lost(silence_s):
            self._lose(f"nothing was heard from it for {silence_s:.0f} s", silence_s)
        elif may_judge and heard is None and silence_s > HUB_TIMEOUT_S:
            self._miss(silence_s, error)

    def _miss(self, silence_s: float, error: Optional[Exception]) -> None:
        hub = self._hub
        if self._order.detached and silence_s > JOIN_TIMEOUT_S:
            self._lose(f"it could not be reached within {JOIN_TIMEOUT_S:g} s")
        elif not self._reported_unreachable:
            self._reported_unreachable = True
            problem = getattr(error, "strerror", None) or error
            self._tell(HubUnreachable(f"{hub.node} at {hub.addr} port {hub.port}: {problem}"))

    def stalled_s(self, own_s: float, now: float) -> Optional[float]:
        heard = self.heard.get(self._hub.node)
        if heard is None or heard.state.stalled_s is None:
            return None
        return min(own_s, now - heard.at + heard.state.stalled_s)

    def is_awaited(self, _: float) -> bool:
        """Return whether the hub, which waits for every member, has not met this one yet."""
        is_outside = self.hub_finished or self._reported_unreachable
        return self.hub_state is None and not is_outside

    def _concerns_us(self, state: PeerState) -> bool:
        return state.node == self._hub.node and not self.hub_finished

    def _take_of_other_attempt(self, state: PeerState) -> bool:
        """Follow the hub into the next attempt, once it has said which; return whether it has."""
        upcoming = state.upcoming
        if upcoming is not None and upcoming.attempt == self._order.attempt + 1:
            self.upcoming = upcoming
        return self.upcoming is not None

    def _conclude(self, state: PeerState, previous: Optional[PeerState]) -> None:
        if previous is None:
            self._tell(HubJoined())
        # Its ranks have not met those of nodes that had left before it joined.
        known = (previous if previous is not None else state).departed_starts
        for each in state.departed:
            left = each.left
            if left.peer == self._order.node:
                if each.start == self._order.rejoin_count:
                    self._tell(Reason(ReasonKind.LOST, left.peer, detail=left.reason))
            elif (left.peer, each.start) not in known:
                self._tell(left)
        self._take_stop(state, previous)
        self._take_of_other_attempt(state)
        self.hub_finished = state.phase is Phase.ENDED

    def _lose(self, reason: str, silence_s: float = 0.0) -> None:
        self.hub_finished = True
        name = self._hub.node
        if self.hub_state is not None and not is_indispensable(self._order, name):
            self._tell(HubUnreachable(f"{name}: {reason}"))
            self._tell(PeerDeparted(name, reason, 0, silence_s=silence_s))
        else:
            self._tell(PeerLost(name, reason, silence_s=silence_s))
