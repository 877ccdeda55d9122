"""Where torch numbers the ranks: who takes part, and whether a loss is the end of the run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping

from runner.control.attempt.admission import NodeAdmission
from runner.control.attempt.event_log import EventLog
from runner.control.attempt.failure_detector import FailureDetector
from runner.control.attempt.node import NodeState
from runner.control.attempt.observer import RunObserver
from runner.control.attempt.stop import StopSequence
from runner.control.rpc.session import HostSession
from runner.core.codec import encode
from runner.core.errors import NotReady
from runner.core.model.facts import Facts
from runner.core.outcome.exits import describe_exit
from runner.core.outcome.membership import Membership, Memberships
from runner.core.planning.build_plan import Plan
from runner.core.protocol.events import (
    Ended,
    EventBody,
    PeerDeparted,
    PeerLost,
    ProgramExited,
    ProgramStarted,
    RankExited,
    RankStarted,
    StopCause,
)
from runner.core.text import counted, join_some


class ElasticMembership:
    """The memberships of one attempt, and the nodes that come and go.

    Attributes:
        admission: What takes nodes in; None where nobody does.
    """

    def __init__(
        self,
        plan: Callable[[], Plan],
        nodes: Mapping[str, NodeState],
        stop: StopSequence,
        detector: FailureDetector,
        event_log: EventLog,
        observer: RunObserver,
    ) -> None:
        self.admission: NodeAdmission | None = None
        self._plan, self._nodes, self._stop, self._detector = plan, nodes, stop, detector
        self._event_log, self._observer = event_log, observer
        self._memberships = Memberships()
        self._failed_membership: Membership | None = None
        self._is_finishing = False
        detector.can_continue_without, detector.awaits_rejoin = (
            self._can_continue_without,
            self._awaits_rejoin,
        )

    def tick(self, now: float) -> None:
        """Try those once more that may join, if it is time."""
        if self.admission is not None and self._may_admit:
            self.admission.retry_due(now)

    def on_event(self, node: NodeState, body: EventBody, at: float) -> bool:
        """Take what a node told of, which happened `at` on our clock.

        Returns:
            Whether that is all that is to be done about it.
        """
        if not self._plan().torch_assigns_ranks:
            return False
        if isinstance(body, ProgramStarted):
            self._on_program_started(node, body, at)
        if node.replaying:
            return True
        if isinstance(body, RankStarted):
            self._on_rank_started(node, body, at)
            return False
        return self._plan().restarts_ranks and self._on_membership_event(node, body, at)

    def _on_membership_event(self, node: NodeState, body: EventBody, at: float) -> bool:
        if isinstance(body, PeerDeparted):
            self._on_peer_left(node, body, at)
            return True
        if isinstance(body, RankExited):
            self._on_rank_exited(node, body)
            return True
        if isinstance(body, PeerLost):
            return self._is_partitioned(node, body)
        is_outside = (
            node.lost or node.surplus
        )  # what it does without the others is no matter of theirs
        if isinstance(body, Ended) and is_outside:
            node.ended = True
        elif isinstance(body, ProgramExited) and body.code == 0:
            node.succeeded = True
            self._stop_latecomers()
        return is_outside

    def _stop_latecomers(self) -> None:
        """Once all is done, nobody can join: torch would look for the others for a minute."""
        last = self._memberships.last
        if last is None or not all(self._nodes[name].succeeded for name in last.nodes):
            return
        for name, node in self._nodes.items():
            if name not in last.nodes and not node.lost and not node.ended and node.live_session:
                node.surplus = True
                reason = "the run had succeeded without it"
                node.live_session.request(
                    "command", {"command": "stop", "reason": reason, "cause": StopCause.PEER.value}
                )
                self._observer.message(f"{name} came too late: {reason}")

    # Memberships

    def _on_program_started(self, node: NodeState, body: ProgramStarted, at: float) -> None:
        node.program_started_at = max(node.program_started_at, at)
        if body.rejoin_count == node.node_plan.order.rejoin_count:
            node.replaying = False
        if at > node.departed_at:
            node.lost = False  # it was taken in again

    def _on_rank_started(self, node: NodeState, body: RankStarted, at: float) -> None:
        """Say so when another membership is whole."""
        membership = self._memberships.add_start(node.name, body, at)
        if membership is None or membership is not self._memberships.last:
            return
        self._is_finishing = False
        if membership.number > 1:
            self._observer.message(describe_membership(membership))

    def _on_rank_exited(self, node: NodeState, body: RankExited) -> None:
        """Say what failed first in a membership; torch ends the others by signals itself."""
        last = self._memberships.last
        if last is None or not last.contains(node.name, body.rank, body.start):
            return
        self._is_finishing = self._is_finishing or body.succeeded
        ended_by_torch = body.signal in (signal.SIGTERM, signal.SIGKILL) and not body.error
        if (
            body.succeeded
            or ended_by_torch
            or node.lost
            or self._failed_membership is last
            or self._stop.requested
        ):
            return
        self._failed_membership = last
        failure = body.error or describe_exit(body.code, body.signal)
        self._observer.message(
            f"rank {body.rank} on {node.name} {failure}; torch starts all ranks anew if it may"
        )

    # Losses

    def _remaining_without(self, node: NodeState) -> int:
        """Return with how many nodes the run goes on when this one is lost; 0 if that ends it."""
        plan, hub = self._plan(), node.node_plan.order.hub
        sidecar = node.node_plan.order.sidecar
        hosts_sidecar = sidecar is not None and sidecar.node == node.name
        if (
            not plan.restarts_ranks
            or hub is None
            or hosts_sidecar
            or (hub.required and hub.node == node.name)
        ):
            return 0
        remaining = sum(1 for other in self._nodes.values() if other is not node and not other.lost)
        return remaining if remaining >= (plan.min_nodes or len(plan.nodes)) else 0

    def _can_continue_without(self, node: NodeState, reason: str) -> bool:
        """Go on without a node of which only we know that it is lost, if that can be."""
        remaining = self._remaining_without(node)
        if (
            not remaining
            or self._stop.requested
            or not (self._detector.owns_run and self._detector.may_stop)
        ):
            return False
        body = PeerDeparted(node.name, reason, remaining)
        self._event_log.record_own("", body, node.last_heard)
        self._mark_departed(node, reason, node.last_heard, remaining)
        for other in self._nodes.values():
            if other.live_session and not other.ended:
                other.live_session.request("command", {"command": "peer_departed", **encode(body)})
        return True

    def _on_peer_left(self, reporter: NodeState, body: PeerDeparted, at: float) -> None:
        """The hub told that it goes on without a node, or others that they do without the hub."""
        peer, hub = self._nodes.get(body.peer), reporter.node_plan.order.hub
        if peer is None or hub is None or hub.node not in (reporter.name, body.peer):
            return
        if hub.node == body.peer:  # nobody keeps in touch any more, but with us
            for other in self._nodes.values():
                other.hub_joined = False
        if not peer.lost and not peer.ended and at > peer.program_started_at:
            self._mark_departed(peer, body.reason, at, self._remaining_without(peer) or body.nodes)

    def _is_partitioned(self, node: NodeState, body: PeerLost) -> bool:
        """Whether it is the one who is cut off, since it lost the hub, and the others go on."""
        hub = self._nodes.get(body.peer)
        remaining = self._remaining_without(node)
        others_intact = (
            remaining == len(self._nodes) - 1 and hub is not None and hub.live_session is not None
        )
        if (
            not node.lost
            and others_intact
            and remaining
            and not self._stop.requested
            and self._detector.may_stop
        ):
            self._mark_departed(
                node, f"it lost {body.peer}: {body.reason}", node.last_heard, remaining
            )
        return node.lost

    def _mark_departed(self, node: NodeState, reason: str, at: float, remaining: int) -> None:
        node.lost, node.departed_at = True, at
        self._observer.node_status(node.name, "lost")
        with_rest = f"with {counted(remaining, 'node') if remaining else 'the others'}"
        self._observer.message(f"{node.name} was lost ({reason}); the run goes on {with_rest}")
        self._schedule_rejoin(node, reason)

    # Nodes that join

    @property
    def _may_admit(self) -> bool:
        """Whether nodes may join: the run is to go on, and no rank has finished."""
        return self._stop.requested is None and not self._is_finishing

    def _awaits_rejoin(self, node: NodeState) -> bool:
        """Whether a node that was lost is left to what may take it in again."""
        is_expected = self.admission is not None and self.admission.is_scheduled(node.name)
        return is_expected and node.lost and self._may_admit

    def _schedule_rejoin(self, node: NodeState, reason: str) -> None:
        node.close()
        if node.backoff is None:
            node.disconnect(reason)
        if self.admission is not None:
            self.admission.schedule([node.name], reason)

    def admit(self, session: HostSession, facts: Facts) -> tuple[Plan, bytes] | None:
        """Return the plan with a node that is there now, and the record of it; None for no."""
        name, admission = session.node.name, self.admission
        if admission is None or not admission.is_scheduled(name) or not self._may_admit:
            return None
        try:
            plan, record = admission.hooks.admit(facts)
        except NotReady as error:
            admission.on_failure(name, error.problems[0].message)
            self.on_unfit(name, error.problems[0].message)
            return None
        admission.on_admitted(name)
        return plan, record

    def on_unfit(self, name: str, reason: str) -> None:
        """A node is there, and may not take part as it is: it is tried again."""
        if self.admission is not None and self.admission.is_new_reason(name, reason):
            self._observer.message(f"{name} cannot join: {reason}; it is tried again")

    def on_refused(self, node: NodeState, reason: str) -> bool:
        """Take it that a node did not take its order; return whether it is tried again.

        What it had before may not have ended yet.
        """
        if self.admission is None or not node.joined_late or self._stop.requested:
            return False
        node.lost = True
        remaining = sum(1 for other in self._nodes.values() if not other.lost)
        self._event_log.record_own("", PeerDeparted(node.name, reason, remaining))
        self._schedule_rejoin(node, reason)
        self.admission.on_failure(node.name, reason)
        self.on_unfit(node.name, reason)
        return True


def describe_membership(membership: Membership) -> str:
    """Return who takes part from now on, and what that changes."""
    nodes, ranks = len(membership.nodes), len(membership.ranks)
    changes = [
        f"{join_some(names)} {word}"
        for names, word in ((membership.departed, "left"), (membership.joined, "joined"))
        if names
    ]
    suffix = f" ({', '.join(changes) or 'the same nodes'})" if membership.diff_known else ""
    size = f"{counted(nodes, 'node')}, {counted(ranks, 'rank')}"
    return f"membership {membership.number}: {size}{suffix}"
