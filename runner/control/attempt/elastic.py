"""Elastic membership: which nodes take part where torch assigns the ranks, and who rejoins."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from runner.control.attempt.node import AttemptNode
from runner.control.attempt.states import NodeState
from runner.core.outcome.first_failure import is_death_of
from runner.core.outcome.membership import Membership, Memberships
from runner.core.planning.notes import FoldNames
from runner.core.wire.events import (
    Ended,
    EventBody,
    PeerDeparted,
    PeerLost,
    ProgramExited,
    ProgramStarted,
    RankExited,
    RankStarted,
    Stopping,
)
from runner.core.wire.order import nodes_after_loss
from runner.core.wire.plan import NodePlan, Plan
from runner.core.wire.text import counted


@dataclass
class Participation:
    """How one node takes part in an elastic attempt."""

    departed: bool = False  # the run goes on without it
    departed_at: float = float("-inf")  # the last time, as `program_started_at`
    program_started_at: float = float("-inf")
    rejoin_count: int = 0  # how often it was sent its order once more
    replaying: bool = False  # its events are still of the time before it rejoined
    succeeded: bool = False  # its launcher process did
    surplus: bool = False  # it was stopped because the run succeeded without it


class Departure(NamedTuple):
    """A node that the attempt goes on without, with `remaining` others (0: not known)."""

    name: str
    reason: str
    at: float
    remaining: int


@dataclass(frozen=True)
class Reaction:
    """What the monitor is to do about an event."""

    handled: bool = False  # nothing else is to be done about it
    message: str = ""  # to show
    next_state: NodeState | None = None  # of its node
    departure: Departure | None = None  # of a node from the membership
    hub_lost: bool = False  # the hub left it, so that the supervisors are out of touch
    surplus: tuple[str, ...] = ()  # nodes to stop because the run succeeded without them


class ElasticMembership:
    """The memberships of one attempt, and the nodes that leave and join."""

    def __init__(
        self, plan: Plan, nodes: Mapping[str, AttemptNode], fold_names: FoldNames = ", ".join
    ) -> None:
        self.plan = plan
        self.is_finishing = False  # a rank of the last membership succeeded, so no node may join
        self._nodes = nodes
        self._fold_names = fold_names
        self.parts = defaultdict[str, Participation](Participation)  # by node
        self._memberships = Memberships()
        self._failed_membership: Membership | None = None

    def on_event(
        self, node: AttemptNode, body: EventBody, at: float, *, is_stopping: bool, may_stop: bool
    ) -> Reaction:
        """Take an event that happened `at` on our clock; return what to do about it."""
        if not self.plan.torch_assigns_ranks:
            return Reaction()
        part = self.parts[node.name]
        next_state = None
        if isinstance(body, ProgramStarted) and self._on_program_started(node, part, body, at):
            next_state = NodeState.RUNNING
        if part.replaying:
            return Reaction(handled=True, next_state=next_state)
        message = ""
        if isinstance(body, RankStarted):
            message = self._on_rank_started(node.name, body, at)
        if message or not self.plan.restarts_ranks:
            return Reaction(message=message, next_state=next_state)
        if isinstance(body, (PeerDeparted, PeerLost)):
            return self._on_loss_event(node, body, at, may_depart=may_stop and not is_stopping)
        if isinstance(body, RankExited):
            return Reaction(True, self._on_rank_exited(node, body, is_stopping=is_stopping))
        is_lost = part.departed or (node.is_lost and next_state is None)
        is_outside = (is_lost or part.surplus) and not isinstance(body, RankStarted)
        departure = None if is_outside or is_stopping else self._on_death(node, body, at)
        surplus: tuple[str, ...] = ()
        if isinstance(body, Ended) and is_outside:
            next_state = NodeState.ENDED
        elif isinstance(body, ProgramExited) and body.code == 0:
            part.succeeded = True
            surplus = self._surplus_nodes() if may_stop else ()
        is_handled = is_outside or departure is not None
        return Reaction(is_handled, next_state=next_state, departure=departure, surplus=surplus)

    def _surplus_nodes(self) -> tuple[str, ...]:
        """Return the nodes to stop once the membership succeeded: torch would wait for others."""
        last = self._memberships.last
        if last is None or not all(self.parts[name].succeeded for name in last.nodes):
            return ()
        surplus = []
        for name, node in self._nodes.items():
            is_present = node.state in (NodeState.STARTING, NodeState.RUNNING)
            if is_present and node.live_session and name not in last.nodes:
                surplus.append(name)
                self.parts[name].surplus = True
        return tuple(surplus)

    # Memberships

    def _on_program_started(
        self, node: AttemptNode, part: Participation, body: ProgramStarted, at: float
    ) -> bool:
        """Return whether a node that was lost takes part again."""
        part.program_started_at = max(part.program_started_at, at)
        if body.rejoin_count == node.node_plan.order.rejoin_count:
            part.replaying = False
        if at <= part.departed_at:
            return False
        part.departed = False
        return node.is_lost

    def _on_rank_started(self, name: str, body: RankStarted, at: float) -> str:
        """Return a message when another membership is complete."""
        membership = self._memberships.add_start(name, body, at)
        if membership is None or membership is not self._memberships.last:
            return ""
        self.is_finishing = False
        return describe_membership(membership, self._fold_names) if membership.number > 1 else ""

    def _on_rank_exited(self, node: AttemptNode, body: RankExited, *, is_stopping: bool) -> str:
        """Return what failed first in a membership; torch ends the other ranks by signals."""
        last = self._memberships.last
        if last is None or not last.contains(node.name, body.rank, body.start):
            return ""
        self.is_finishing = self.is_finishing or body.succeeded
        ended_by_torch = body.signal in (signal.SIGTERM, signal.SIGKILL) and not body.error
        is_consequence = ended_by_torch or self._failed_membership is last or is_stopping
        if body.succeeded or is_consequence or self.is_absent(node):
            return ""
        self._failed_membership = last
        return f"{body.reason(node.name).text}; torch restarts all ranks if it may"

    # Losses

    def is_absent(self, node: AttemptNode) -> bool:
        """Return whether a node was lost or departed, and has not come back."""
        return node.is_lost or self.parts[node.name].departed

    def remaining_without(self, node: AttemptNode) -> int:
        """Return with how many nodes the attempt goes on without this one; 0 if it does not."""
        others = [other for other in self._nodes.values() if other is not node]
        remaining = sum(not self.is_absent(other) for other in others)
        return nodes_after_loss(node.node_plan.order, node.name, remaining)

    def depart(self, departure: Departure) -> None:
        """Note that a node left."""
        part = self.parts[departure.name]
        part.departed = True
        part.departed_at = departure.at

    def _on_loss_event(
        self, node: AttemptNode, body: PeerDeparted | PeerLost, at: float, *, may_depart: bool
    ) -> Reaction:
        if isinstance(body, PeerDeparted):
            return self._on_peer_departed(node, body, at)
        departure = self._partition(node, body) if may_depart else None
        return Reaction(handled=departure is not None or self.is_absent(node), departure=departure)

    def _on_peer_departed(self, reporter: AttemptNode, body: PeerDeparted, at: float) -> Reaction:
        """The hub reports that a node left, or a member that the hub did."""
        peer = self._nodes.get(body.peer)
        hub = reporter.node_plan.order.hub
        if peer is None or hub is None or hub.node not in (reporter.name, body.peer):
            return Reaction(handled=True)
        is_present = peer.state in (NodeState.STARTING, NodeState.RUNNING)
        departure = None
        declared_at = at + body.silence_s
        if is_present and declared_at > self.parts[body.peer].program_started_at:
            remaining = self.remaining_without(peer) or body.nodes
            departure = Departure(body.peer, body.reason, declared_at, remaining)
        return Reaction(handled=True, departure=departure, hub_lost=hub.node == body.peer)

    def _on_death(self, node: AttemptNode, body: EventBody, at: float) -> Departure | None:
        """Return the departure of a node whose supervisor died, where others remain.

        What they have recorded of it may be read later.
        """
        if not (isinstance(body, Stopping) and is_death_of(node.name, body)):
            return None
        remaining = self.remaining_without(node)
        return Departure(node.name, body.reason.detail, at, remaining) if remaining else None

    def _partition(self, node: AttemptNode, body: PeerLost) -> Departure | None:
        """Return the departure of a node that lost the hub while all the others are present."""
        hub = self._nodes.get(body.peer)
        remaining = self.remaining_without(node)
        others_intact = hub is not None and hub.live_session and remaining == len(self._nodes) - 1
        if self.is_absent(node) or not remaining or not others_intact:
            return None
        reason = f"it lost {body.peer}: {body.reason}"
        return Departure(node.name, reason, node.connection.last_heard, remaining)

    # Nodes that rejoin

    def rejoin(self, name: str) -> NodePlan:
        """Return the part of the plan of a node that is started again."""
        part = self.parts[name]
        part.rejoin_count += 1
        part.departed = False
        part.replaying = True
        node_plan = self.plan.node(name)
        order = replace(node_plan.order, rejoin_count=part.rejoin_count)
        return replace(node_plan, order=order)

    def refuse(self, name: str, reason: str) -> PeerDeparted | None:
        """Return the departure of a rejoining node that refused its order; None of any other."""
        part = self.parts[name]
        if not part.rejoin_count:
            return None
        part.departed = True
        remaining = sum(not self.is_absent(other) for other in self._nodes.values())
        return PeerDeparted(name, reason, remaining)


def describe_membership(membership: Membership, fold_names: FoldNames) -> str:
    """Return which nodes take part from now on, and what changed."""
    nodes = len(membership.nodes)
    ranks = len(membership.ranks)
    changes = [
        f"{fold_names(names)} {word}"
        for names, word in ((membership.departed, "left"), (membership.joined, "joined"))
        if names
    ]
    suffix = f" ({', '.join(changes) or 'the same nodes'})" if membership.diff_known else ""
    size = f"{counted(nodes, 'node')}, {counted(ranks, 'rank')}"
    if membership.restarts:
        suffix += f"; restart {membership.restarts} of {membership.max_restarts}"
    return f"membership {membership.number}: {size}{suffix}"
