"""Fold of states: what a hub or a member concludes from those that it has, and from the clock.

Pure: the caller says what has arrived, what its own state is, and what time it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, Iterable, List, Optional, Set, Tuple

from runner.core.wire.order import Hub, Order, is_indispensable, nodes_after_loss
from runner.core.wire.states import Reason, ReasonKind
from runner.core.wire.timing import HEARTBEAT_S, HUB_TIMEOUT_S, JOIN_TIMEOUT_S, FailureDetector
from runner.host.peers.state import LONG_S, Departure, LastHeard, PeerState, Phase, Upcoming


class PeerObserver:
    """Carries out what is concluded."""

    @property
    def is_stopping(self) -> bool:
        """Whether this host stops."""
        return False

    def on_peer_stop(self, reason: Reason) -> None:
        """The attempt stops on the other hosts."""

    def on_peer_lost(self, peer: str, reason: str, last_seen: float) -> None:
        """A node was lost; its last sign of life came at `last_seen`, monotonic."""

    def on_peer_departed(self, peer: str, reason: str, last_seen: float, node_count: int) -> None:
        """A node was lost, and the run continues with `node_count` nodes (0: unknown)."""

    def on_hub_joined(self) -> None:
        """The hub has answered."""

    def on_hub_unreachable(self, reason: str) -> None:
        """The hub cannot be reached."""

    def on_lease_renewed(self, heard: LastHeard, *, detached: bool) -> None:
        """Another supervisor heard controllers then; with `detached` none is needed."""


@dataclass(frozen=True)
class Heard:
    """The last state of a node, and when it came."""

    state: PeerState
    at: float


class Fold:
    """What hub and members have in common."""

    def __init__(self, order: Order, hub: Hub, observer: PeerObserver, now: float) -> None:
        self.heartbeat_s = min(HEARTBEAT_S, hub.lost_s / 5)
        self.silence_s = max(2.5 * self.heartbeat_s, hub.lost_s / 3)
        """After so much of it a new connection is worth a try: TCP waits longer."""
        self.heard: Dict[str, Heard] = {}  # by node
        self.upcoming: Optional[Upcoming] = None  # what a hub says follows
        self.hub_finished = False  # on a member: it ended, or was declared lost
        self._order = order
        self._hub = hub
        self._observer = observer
        self._began_at = now
        self._detector = FailureDetector(hub.lost_s)

    def take(self, state: PeerState, now: float) -> bool:
        """Take a state, and return whether it is a new one of this attempt."""
        previous = self.heard.get(state.node)
        is_news = previous is None or state.age > previous.state.age
        if state.run != self._order.run_id or not (is_news and self._concerns_us(state)):
            return False
        if state.attempt != self._order.attempt:
            return self._take_of_other_attempt(state)
        self.heard[state.node] = Heard(state, now)
        heard = LastHeard(now - state.controller_age_s, now - state.launch_age_s)
        self._observer.on_lease_renewed(heard, detached=state.detached)
        self._conclude(state, previous.state if previous is not None else None, now)
        return True

    def _concerns_us(self, state: PeerState) -> bool:
        return state.node != self._order.node

    def _take_of_other_attempt(self, state: PeerState) -> bool:
        raise NotImplementedError

    def _conclude(self, state: PeerState, previous: Optional[PeerState], now: float) -> None:
        raise NotImplementedError

    def _take_stop(self, state: PeerState, previous: Optional[PeerState]) -> None:
        if state.stop is not None and (previous is None or previous.stop != state.stop):
            self._observer.on_peer_stop(state.stop)


class HubFold(Fold):
    """The conclusions of the hub."""

    def __init__(self, order: Order, hub: Hub, observer: PeerObserver, now: float) -> None:
        super().__init__(order, hub, observer, now)
        self._departed: Dict[str, Tuple[Departure, float]] = {}  # with the last sign of life
        self._gone: Dict[str, int] = {}  # lost nodes, and which start of them
        self._met: Set[str] = set()  # members that have joined, or that the run does without
        self._required: Set[str] = set()  # those that must join soon
        self._never_came: Dict[str, float] = {}  # those that did not, and when that was declared
        self.first_to_stop = ""  # the member that stopped before all others, and before the hub

    def check(self, now: float, _: str = "") -> None:
        """Declare members lost that are silent, or did not join."""
        if not self._detector.check(now):
            return
        for name in self._in_phase(Phase.ACTIVE, Phase.PENDING):
            silence_s = now - self.heard[name].at
            if self._detector.is_lost(silence_s):
                reason = f"nothing was heard from it for {silence_s:.0f} s"
                self._lose(name, reason, self.heard[name].at)
        if now > self._began_at + JOIN_TIMEOUT_S:
            missing = sorted(self._required)
            self._required.clear()
            for name in missing:
                reason = f"it did not start within {JOIN_TIMEOUT_S:g} s"
                self._never_came[name] = now  # and it ends what it may have started
                self._met.add(name)
                self._observer.on_peer_lost(name, reason, now)

    def stalled_s(self, own_s: float, now: float) -> Optional[float]:
        """Return for how long no rank has made progress on any host; None if that is unknown."""
        progress_at = [now - own_s]
        for name in self._present:
            heard = self.heard[name]
            if name not in self._hub.spares and now - heard.at > self.silence_s:
                return None
            progress_at.append(heard.at - min(heard.state.stalled_s or 0.0, LONG_S))
        return now - max(progress_at) if self.has_met_all else None

    def depart(self, name: str, reason: str, last_seen: float, nodes: int) -> None:
        """Go on without a node, and tell the members so."""
        heard = self.heard.get(name)
        start = heard.state.start if heard is not None else 0
        self._departed[name] = (Departure(name, start, reason, 0.0, nodes), last_seen)
        self._gone[name] = start
        self._met.add(name)

    def departed(self, now: float) -> Tuple[Departure, ...]:
        """Return the nodes that the attempt goes on without."""
        nodes = self._departed.values()
        return tuple(replace(each, silence_s=now - last_seen) for each, last_seen in nodes)

    def is_awaited(self, now: float) -> bool:
        """Return whether a member still takes part, or may be about to join."""
        is_late = now - self._began_at > HUB_TIMEOUT_S
        members = {*self._present}.difference(self._hub.spares)
        return bool(members) or not (self.has_met_all or is_late)

    def expect(self, names: Iterable[str]) -> None:
        """Take members as lost that do not join in time: no controller watches over them."""
        self._required = {*names}

    @property
    def has_met_all(self) -> bool:
        """Whether every member has joined, or the run does without it."""
        return len(self._met) >= self._hub.member_count

    def knows(self, name: str) -> bool:
        """Return whether a member has joined, or the run goes on without it."""
        return name in self._met

    # After the end of the attempt

    @property
    def proven(self) -> List[str]:
        """Those that answer, and have proved their end."""
        return self._in_phase(Phase.PENDING)

    def is_one_unproven(self, now: float, patience_s: float) -> bool:
        """Return whether ranks may be left: of who answers, or has been silent for less than that.

        A node that is cut off ends its ranks within `patience_s`.
        """
        if self._present:
            return True
        since = [*self._never_came.values()]
        for name in self._gone:
            heard = self.heard.get(name)
            if heard is not None and heard.state.phase in (Phase.ACTIVE, Phase.DEAD):
                since.append(heard.at)
        return any(now - at < patience_s for at in since)

    @property
    def _present(self) -> List[str]:
        """The members that have joined, and have neither ended nor left."""
        return self._in_phase(Phase.ACTIVE)

    def _in_phase(self, *phases: Phase) -> List[str]:
        """Return the members that are there, and have come so far."""
        names = [name for name, heard in self.heard.items() if heard.state.phase in phases]
        return [name for name in names if name not in self._gone]

    def _take_of_other_attempt(self, state: PeerState) -> bool:
        """Answer who has not heard of the attempt that has begun: a link is all that it needs."""
        return state.attempt == self._order.attempt - 1 and state.node not in self.heard

    def _conclude(self, state: PeerState, previous: Optional[PeerState], now: float) -> None:
        name = state.node
        if self._gone.get(name, state.start) < state.start:  # it joined again
            del self._gone[name]
            self._departed.pop(name, None)
        if name in self._gone:
            return
        self._required.discard(name)
        if name not in self._hub.spares:
            self._met.add(name)
        if state.phase is Phase.DEAD:
            self._lose(name, state.stop.detail if state.stop else "its supervisor died", now)
        else:
            if state.stop is not None and not self._observer.is_stopping:
                self.first_to_stop = self.first_to_stop or name
            self._take_stop(state, previous)

    def _lose(self, name: str, reason: str, last_seen: float) -> None:
        """Stop since a member is gone; unless it stood by, or the run may continue without it."""
        self._gone[name] = self.heard[name].state.start
        if name in self._hub.spares:
            return
        count = 1 + len({*self._present}.difference(self._hub.spares))
        if self._observer.is_stopping or not nodes_after_loss(self._order, name, count):
            self._observer.on_peer_lost(name, reason, last_seen)
            return
        self._observer.on_peer_departed(name, reason, last_seen, count)


class MemberFold(Fold):
    """The conclusions of a member, which hears the hub alone."""

    def __init__(self, order: Order, hub: Hub, observer: PeerObserver, now: float) -> None:
        super().__init__(order, hub, observer, now)
        self._reported_unreachable = False

    @property
    def hub_state(self) -> Optional[PeerState]:
        """What the hub said last; None before it has been reached."""
        heard = self.heard.get(self._hub.node)
        return heard.state if heard is not None else None

    def check(self, now: float, problem: str = "") -> None:
        """Declare the hub lost if it is silent; `problem` is why it was not reached."""
        if not self._detector.check(now) or self.hub_finished:
            return
        heard = self.heard.get(self._hub.node)
        silence_s = now - (heard.at if heard is not None else self._began_at)
        if heard is not None:
            if self._detector.is_lost(silence_s):
                self._lose(f"nothing was heard from it for {silence_s:.0f} s", now - silence_s)
            return
        hub = self._hub
        if self._order.detached and silence_s > JOIN_TIMEOUT_S:
            self._lose(f"it could not be reached within {JOIN_TIMEOUT_S:g} s", now)
        elif silence_s > HUB_TIMEOUT_S and not self._reported_unreachable:
            self._reported_unreachable = True
            self._observer.on_hub_unreachable(
                f"{hub.node} at {hub.addr} port {hub.port}: {problem}"
            )

    def on_refused(self, now: float) -> None:
        """Take the hub as gone if it was there: nothing listens on its host any more."""
        if self.hub_state is not None and not self.hub_finished:
            self._lose("its supervisor is gone", now)

    def stalled_s(self, own_s: float, now: float) -> Optional[float]:
        """Return for how long no rank has made progress on any host; None if that is unknown."""
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
        return self._follow(state)

    def _follow(self, state: PeerState) -> bool:
        """Follow the hub into the next attempt, once it has said which; return whether it has."""
        upcoming = state.upcoming
        if upcoming is not None and upcoming.attempt == self._order.attempt + 1:
            self.upcoming = upcoming
        return self.upcoming is not None

    def _conclude(self, state: PeerState, previous: Optional[PeerState], now: float) -> None:
        if previous is None:
            self._observer.on_hub_joined()
        # Its ranks have not met those of nodes that had left before it joined.
        known = (previous if previous is not None else state).departed_starts
        for each in state.departed:
            if each.node == self._order.node:
                if each.start == self._order.rejoin_count:
                    lost = Reason(ReasonKind.LOST, each.node, detail=each.reason)
                    self._observer.on_peer_stop(lost)
            elif (each.node, each.start) not in known:
                seen_at = now - each.silence_s
                self._observer.on_peer_departed(each.node, each.reason, seen_at, each.nodes)
        self._take_stop(state, previous)
        self._follow(state)
        self.hub_finished = state.phase is Phase.ENDED

    def _lose(self, reason: str, last_seen: float) -> None:
        self.hub_finished = True
        name = self._hub.node
        if self.hub_state is not None and not is_indispensable(self._order, name):
            self._observer.on_hub_unreachable(f"{name}: {reason}")
            self._observer.on_peer_departed(name, reason, last_seen, 0)
        else:
            self._observer.on_peer_lost(name, reason, last_seen)
