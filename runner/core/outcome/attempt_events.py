"""Events of one attempt: what they say about its nodes and ranks, memberships, stops and losses.

Memberships, where torch assigns the ranks, are recognised by the starts of these: torch tells no
rank which one it belongs to. But each has a port of its own, the store that its rank 0 opens
(torch/distributed/elastic/rendezvous/api.py, `RendezvousStoreInfo.build`).
"""

from __future__ import annotations

import functools
import signal
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from runner.core.wire.events import (
    Ended,
    EndUnverified,
    Event,
    EventBody,
    HostLost,
    PeerDeparted,
    PeerLost,
    ProgramExited,
    ProgramStarted,
    RankExited,
    RankStarted,
    Stopping,
    StopRequested,
    TimedEvent,
)
from runner.core.wire.plan import Plan
from runner.core.wire.states import Reason, ReasonKind, State

Body = TypeVar("Body", bound=EventBody)

MAX_MEETINGS = 16
"""Of the memberships that met at one address, so many of the latest may lack a rank."""


@dataclass(frozen=True)
class RankResult:
    """How one rank ended; without code and signal, its end was not seen."""

    node: str
    code: int | None = None
    signal: int | None = None
    started: bool = False
    traceback: str = ""  # what torch's `@record` wrote about its end
    exception: str = ""  # the one that its log ends with
    facts: dict[str, str] = field(default_factory=dict)  # of `rank_facts`, if it failed


@dataclass(frozen=True)
class NodeResult:
    """How the launcher process of one node ended, and what was left of the run there."""

    code: int | None = None
    signal: int | None = None
    end_verified: bool = False  # whether a look at all processes proved that nothing is left
    killed: int = 0
    survivors: tuple[int, ...] = ()  # pids that could not be killed
    end_reason: str = ""
    left_over: tuple[str, ...] = ()  # commands that it had left running, and that were ended
    apart: bool = False  # whether its ranks had a store of torch's of their own, and met no others


@dataclass
class NodeStory:
    """What the events say about a node; only one with a result takes part."""

    result: NodeResult | None = None
    has_started: bool = False
    is_proven: bool = False  # a look there proved that nothing is left
    problem: str = ""  # why the node cannot take part in another attempt
    departed: str | None = None  # why the attempt went on without it

    def on_departed(self, reason: str) -> None:
        self.departed = reason
        self.is_proven = False

    def add(self, body: EventBody) -> None:
        result = self.result or NodeResult()
        if isinstance(body, ProgramStarted):  # again, if it was lost and rejoined
            self.result = NodeResult()
            self.has_started = True
            self.problem = ""
            self.departed = None if body.rejoin_count else self.departed
        elif isinstance(body, ProgramExited):
            self.result = replace(result, code=body.code, signal=body.signal, apart=body.apart)
        elif isinstance(body, EndUnverified):
            self.problem = body.reason
        elif isinstance(body, Ended):
            self.result = replace(
                result,
                end_verified=body.verified,
                killed=body.killed,
                survivors=body.survivors,
                end_reason=end_text(body),
                left_over=body.left_over,
            )
            if body.state is State.FAILED and not self.has_started:
                self.problem = end_text(body) or "its program could not be started"
            elif body.survivors or not body.verified:
                self.problem = "something of the run may be left there"
            else:
                self.is_proven = True


@dataclass
class Membership:
    """Ranks that were started together."""

    number: int  # from 1
    master: str  # the address at which its ranks meet
    world_size: int  # 0 if unknown
    started_at: float  # its first start, on the controller's clock
    ranks: dict[int, tuple[str, int]] = field(default_factory=dict)  # node, number of the start
    restarts: int = 0  # by torch after failures so far, on the node that counts most

    @property
    def nodes(self) -> tuple[str, ...]:
        """Its nodes, that of rank 0 first."""
        return tuple(dict.fromkeys(node for _, (node, _) in sorted(self.ranks.items())))

    def contains(self, node: str, rank: int, start: int) -> bool:
        return self.ranks.get(rank) == (node, start)


class Memberships:
    def __init__(self) -> None:
        self.all: list[Membership] = []
        self.last: Membership | None = None  # the latest one; None before any rank has started
        self._meetings: dict[tuple[str, int], deque[Membership]] = {}  # by master and world size

    def add_start(self, node: str, body: RankStarted, at: float) -> Membership | None:
        """Add the start of a rank; return its membership if that completes it."""
        key = (body.master, body.world_size)
        same = self._meetings.setdefault(key, deque(maxlen=MAX_MEETINGS))
        membership = next((each for each in reversed(same) if body.rank not in each.ranks), None)
        if membership is None:
            membership = Membership(len(self.all) + 1, body.master, body.world_size, at)
            self.all.append(membership)
            same.append(membership)
            if self.last is None or at > self.last.started_at:
                self.last = membership
        membership.ranks[body.rank] = (node, body.start)
        membership.restarts = max(membership.restarts, body.restarts)
        return membership if 0 < membership.world_size <= len(membership.ranks) else None


class UserStop(NamedTuple):
    """When a user asked for the end, by which signal, and who it was."""

    at: float
    signal: int
    reason: Reason


class NodeStop(NamedTuple):
    """A stop with which a node learned, in an attempt, that its processes are to end."""

    mono: float  # on the node's own clock
    reason: Reason
    is_own: bool  # the node had failed itself; TERM to all of its processes is no such failure


Stops = Mapping[tuple[str, int], Sequence[NodeStop]]
"""Of each node in each attempt its first own stop and its first other one, in their order."""


class AttemptEvents:
    """What the events of one attempt say, taken in the order of time."""

    def __init__(self, plan: Plan, timed_events: Iterable[TimedEvent]) -> None:
        self.plan = plan
        self.timed = sorted(timed_events, key=lambda timed: timed.at)
        self.nodes = {node_plan.node: NodeStory(NodeResult()) for node_plan in plan.nodes}
        for event in (timed.event for timed in self.timed):
            if isinstance(event.body, PeerDeparted):
                self._story(event.body.peer).on_departed(event.body.reason)
            else:
                self._story(event.node).add(event.body)
        self.memberships = Memberships()  # where torch assigns the ranks
        for timed, started in self.of(RankStarted) if plan.torch_assigns_ranks else ():
            self.memberships.add_start(timed.event.node, started, timed.at)
        self.stops = node_stops(timed.event for timed in self.timed)
        hub, *others = (node_plan.node for node_plan in plan.nodes)
        losers = {timed.event.node for timed, lost in self.of(PeerLost) if lost.peer == hub}
        self._hub_cut_off = len(others) > 1 and losers.issuperset(others)
        of_hub = (stops for (node, _), stops in self.stops.items() if node == hub)
        self._hub_stopped = any(not stop.is_own for stops in of_hub for stop in stops)
        self.lost: dict[str, str] = {}  # why, by whoever noticed first
        for timed in self.timed:
            body = timed.event.body
            if isinstance(body, ProgramStarted) and body.rejoin_count:
                self.lost.pop(timed.event.node, None)
            elif loss := self.loss(timed):
                self.lost.setdefault(loss.node, loss.detail)

    def _story(self, name: str) -> NodeStory:
        return self.nodes.setdefault(name, NodeStory())

    def of(self, kind: type[Body]) -> list[tuple[TimedEvent, Body]]:
        bodies = ((timed, timed.event.body) for timed in self.timed)
        return [(timed, body) for timed, body in bodies if isinstance(body, kind)]

    @property
    def is_decided(self) -> bool:
        """Whether the program of the node that decides succeeded before anything stopped it.

        What other nodes did about that moment is no failure: they may notice it before they are
        told.
        """
        for event in (timed.event for timed in self.timed):
            if event.node == self.plan.deciding_node and isinstance(event.body, Stopping):
                return False
            if event.node == self.plan.deciding_node and isinstance(event.body, ProgramExited):
                return event.body.succeeded
        return False

    @functools.cached_property
    def user_stop(self) -> UserStop | None:
        """The stop that a user asked for, None if nobody did.

        A stop that was requested elsewhere counts as SIGINT. Where both are on record, ours has the
        signal, whichever clock says that it came first.
        """
        requested = [(at, body) for at, body in self.of(StopRequested) if body.signal]
        reported = [(at, body) for at, body in self.of(Stopping) if body.reason.is_by_user]
        stops = [UserStop(timed.at, body.signal, body.reason) for timed, body in requested]
        stops += [UserStop(timed.at, signal.SIGINT, body.reason) for timed, body in reported]
        return stops[0]._replace(at=min(stop.at for stop in stops)) if stops else None

    def ranks(self) -> dict[int, RankResult]:
        """Return how every rank ended: those of the plan, or of the last membership."""
        last = self.memberships.last
        ranks = {rank: RankResult(share.node) for share in self.plan.nodes for rank in share.ranks}
        for event in (timed.event for timed in self.timed):
            body = event.body
            if not isinstance(body, (RankStarted, RankExited)):
                continue
            if last and not last.contains(event.node, body.rank, body.start):
                continue
            if isinstance(body, RankExited):
                ranks[body.rank] = RankResult(
                    node=event.node,
                    code=body.code,
                    signal=body.signal,
                    started=True,
                    traceback=body.traceback,
                    exception=body.exception,
                    facts=body.facts,
                )
            else:
                known = ranks.get(body.rank, RankResult(event.node))
                ranks[body.rank] = replace(known, started=True)
        return ranks

    def loss(self, timed: TimedEvent) -> Reason | None:
        """Return the loss that an event reports, if any.

        A hub that each of several others lost was cut off, and what it says of them is no loss.
        Where it lived on to be stopped and was not, who lost it was cut off.
        """
        name = timed.event.node
        body = timed.event.body
        if not isinstance(body, (HostLost, PeerLost)):
            return None
        hub = self.plan.nodes[0].node
        if self._hub_cut_off and isinstance(body, PeerLost) and name == hub:
            return None
        node = body.peer if isinstance(body, PeerLost) else name
        detail = body.reason
        if node == hub and name != hub and self._hub_stopped and not self._hub_cut_off:
            node = name or hub
            detail = f"out of touch with {hub}: {detail}"
        return Reason(ReasonKind.LOST, node, detail=detail)


def node_stops(events: Iterable[Event]) -> Stops:
    stops: dict[tuple[str, int], list[NodeStop]] = {}
    for event in events:
        if isinstance(event.body, Stopping):
            reason = event.body.reason
            is_own = reason.is_own(event.node) and reason.kind is not ReasonKind.TERM
            of_node = stops.setdefault((event.node, event.attempt), [])
            if all(earlier.is_own != is_own for earlier in of_node):
                of_node.append(NodeStop(event.mono, reason, is_own))
    return stops


def stop_before(event: Event, stops: Stops, *, also_own: bool = False) -> NodeStop | None:
    """Return the stop that a host was carrying out when a process of it ended, if any.

    The host's own clock decides: what is known of its offset may be wrong by more than the
    milliseconds between a stop and what ends by it.
    """
    of_node = stops.get((event.node, event.attempt), ())
    stop = next((stop for stop in of_node if also_own or not stop.is_own), None)
    is_end = isinstance(event.body, (RankExited, ProgramExited))
    return stop if is_end and stop is not None and event.mono >= stop.mono else None


def end_text(body: Ended) -> str:
    """Return what a host said about its end, "" if nothing."""
    reason = body.reason.words if body.reason else ""
    return "; ".join(filter(None, (reason, body.unproven)))
