"""Elastic membership: which nodes take part where torch assigns the ranks, and who left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.control.attempt.attempt import Attempt, Role
from runner.control.attempt.node import AttemptNode, NodeState
from runner.control.attempt.stop import send_stop
from runner.core.outcome.attempt_events import Memberships
from runner.core.outcome.first_failure import is_death_of
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
from runner.core.wire.states import Reason, ReasonKind
from runner.core.wire.text import counted

if TYPE_CHECKING:
    from runner.control.attempt.node_monitor import NodeMonitor


class ElasticMembership:
    """The memberships of one attempt; `monitor` carries out what follows from its events."""

    def __init__(self, attempt: Attempt, monitor: NodeMonitor) -> None:
        self.is_finishing = False  # a rank of the last membership succeeded, so no node may join
        self._attempt = attempt
        self._nodes = attempt.nodes
        self._monitor = monitor
        self._memberships = Memberships()

    def on_event(self, node: AttemptNode, body: EventBody, at: float) -> bool:
        """Take an event that happened `at` on our clock; return whether that is all."""
        plan = self._attempt.plan
        if not plan.torch_assigns_ranks:
            return False
        if isinstance(body, ProgramStarted):
            node.on_program_started(body.rejoin_count, at)
        if node.is_replaying:
            return True
        if isinstance(body, RankStarted):
            self._on_rank_started(node.name, body, at)
            return False
        return plan.restarts_ranks and self._take(node, body, at)

    def _take(self, node: AttemptNode, body: EventBody, at: float) -> bool:
        is_stopping = self._monitor.is_stopping
        match body:
            case PeerDeparted():
                self._on_peer_departed(node, body, at)
                return True
            case RankExited():
                last = self._memberships.last
                if last is not None and last.contains(node.name, body.rank, body.start):
                    self.is_finishing = self.is_finishing or body.succeeded
                return True
            case PeerLost():
                is_left = not is_stopping and self._leave_if_cut_off(node, body)
                return is_left or node.is_absent
            case ProgramExited() if body.code == 0:
                node.has_succeeded = True
                self._stop_surplus_nodes()
        if node.is_absent or node.is_surplus:
            if isinstance(body, Ended):
                node.move_to(NodeState.ENDED)
            return True
        if isinstance(body, Stopping) and is_death_of(node.name, body) and not is_stopping:
            remaining = self.remaining_without(node)
            if remaining > 0:  # that the others have recorded it may be read later, if ever
                self._monitor.depart(node, body.reason.detail, at, remaining, announce=True)
                return True
        return False

    def remaining_without(self, node: AttemptNode) -> int:
        """Return with how many nodes the attempt goes on without this one; 0 if it does not."""
        others = (other for other in self._nodes.values() if other is not node)
        remaining = sum(not other.is_absent for other in others)
        return nodes_after_loss(node.node_plan.order, node.name, remaining)

    def _stop_surplus_nodes(self) -> None:
        """Stop others once the last membership has succeeded: torch would wait for more nodes."""
        last = self._memberships.last
        if last is None or not all(self._nodes[name].has_succeeded for name in last.nodes):
            return
        reason = Reason(ReasonKind.OTHER, detail="the run had succeeded without it")
        for name, node in self._nodes.items():
            session = node.live_session
            is_surplus = node.is_present and name not in last.nodes
            if is_surplus and session and self._attempt.role is not Role.READ_ONLY:
                node.is_surplus = True
                send_stop(session, reason)
                self._attempt.say(f"{name} came too late: {reason.text}")

    def _on_rank_started(self, name: str, body: RankStarted, at: float) -> None:
        membership = self._memberships.add_start(name, body, at)
        if membership is None or membership is not self._memberships.last:
            return
        self.is_finishing = False
        if membership.number > 1:
            nodes = counted(len(membership.nodes), "node")
            text = (
                f"membership {membership.number}: {nodes}, {counted(membership.world_size, 'rank')}"
            )
            if membership.restarts:
                text += f"; restart {membership.restarts} of {body.max_restarts}"
            self._attempt.say(text)

    def _on_peer_departed(self, reporter: AttemptNode, body: PeerDeparted, at: float) -> None:
        """The hub reports that a node left, or a member that the hub did."""
        peer = self._nodes.get(body.peer)
        hub = reporter.node_plan.order.hub
        if peer is None or hub is None or hub.node not in (reporter.name, body.peer):
            return
        if hub.node == body.peer:
            self._monitor.peer_status.on_hub_lost()
        declared_at = at + body.silence_s
        if peer.is_present and declared_at > peer.program_started_at:
            remaining = self.remaining_without(peer) or body.nodes
            self._monitor.depart(peer, body.reason, declared_at, remaining)

    def _leave_if_cut_off(self, node: AttemptNode, body: PeerLost) -> bool:
        """Go on without a node that lost the hub while all the others are present."""
        hub = self._nodes.get(body.peer)
        remaining = self.remaining_without(node)
        others_intact = hub is not None and hub.live_session and remaining == len(self._nodes) - 1
        if node.is_absent or not remaining or not others_intact:
            return False
        reason = f"it lost {body.peer}: {body.reason}"
        self._monitor.depart(node, reason, node.connection.last_heard, remaining)
        return True
