"""Failure detector of the controller: judge silent nodes, and give up on lost ones.

A broken connection changes nothing for the ranks: it is opened again. The supervisors detect each
other's failures through the hub; the controller declares a node lost only where they cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from runner.control.attempt.node import AttemptNode
from runner.control.attempt.observer import Role
from runner.control.attempt.peer_status import PeerStatus
from runner.control.rpc.facts import BOOT_TIMEOUT_S
from runner.core.failure_detector import FailureDetector, Liveness
from runner.core.model.spec import Spec
from runner.core.protocol.states import NodeState
from runner.core.protocol.timing import STOP_TIMEOUT_S

START_TIMEOUT_S = 30.0
"""How long a host may take from its order to a running supervisor."""

LAST_HOST_TIMEOUT_S = 60.0
"""How long the last awaited host may be unreachable; `attach` finds it later."""

ATTACH_TIMEOUT_S = 600.0
"""How long an attached controller waits when no host of the run can be reached any more."""

DRAIN_TIMEOUT_S = 15.0
"""How long a host that has ended may take to send the next piece of its logs."""

FOREVER = float("inf")


class Judgement(NamedTuple):
    """The state that a node should move to, and why."""

    state: NodeState
    reason: str
    show: bool = False
    record: bool = False  # that the end of the node is not verified


class NodeFailureDetector:
    """Judges the nodes of one attempt; the monitor acts on the judgements."""

    def __init__(
        self, spec: Spec, nodes: Mapping[str, AttemptNode], peer_status: PeerStatus
    ) -> None:
        self.role = Role.LAUNCH
        self.relaunch_follows = False  # then the end of a lost node is not awaited
        self._spec, self._nodes, self._peer_status = spec, nodes, peer_status
        self._detector = FailureDetector(spec.lost_s)

    def may_judge(self, now: float) -> bool:
        """Return whether nodes may be judged now: not just after this machine was asleep."""
        return self._detector.check(now)

    def silent_connection(self, node: AttemptNode) -> str:
        """Return why the session of a node must be replaced, "" if it need not."""
        session, limit = node.connection.session, self._spec.lost_s
        if session is None:
            return ""
        if not session.handshake_done:
            limit = max(limit, BOOT_TIMEOUT_S)
        is_silent = session.idle_s > limit
        return f"nothing was heard from it for {session.idle_s:.0f} s" if is_silent else ""

    def judge(
        self, node: AttemptNode, now: float, stop_deadline: float, *, awaits_rejoin: bool
    ) -> Judgement | None:
        """Return how a node that is not finished should move on, None for not at all."""
        silence_s = now - node.connection.last_heard
        if node.has_ended:
            timeout_s = self._spec.lost_s if node.connection.backoff else DRAIN_TIMEOUT_S
            is_late = now - node.last_data > timeout_s
            reason = "the last of its logs did not arrive"
            return Judgement(NodeState.COMPLETE, reason, show=True) if is_late else None
        if now > stop_deadline:
            return Judgement(NodeState.UNVERIFIED, "it did not report its end", record=True)
        if node.is_lost or self.role is not Role.LAUNCH:
            return self._give_up(node, silence_s, awaits_rejoin=awaits_rejoin)
        if self._detector.judge(silence_s, self._lost_limit_s(node)) is Liveness.LOST:
            return Judgement(NodeState.LOST, f"nothing was heard from it for {silence_s:.0f} s")
        is_starting = not node.supervisor_started and node.live_session
        if is_starting and now > node.last_data + START_TIMEOUT_S:
            reason = f"its supervisor did not start within {START_TIMEOUT_S:.0f} s"
            return Judgement(NodeState.LOST, reason)
        return None

    def _others(self, node: AttemptNode) -> list[AttemptNode]:
        return [other for other in self._nodes.values() if other is not node]

    def _lost_limit_s(self, node: AttemptNode) -> float:
        """Return how long a node may be silent before it counts as lost.

        As long as others are in touch with it, they report its loss. A supervisor that is in touch
        with no other goes on until its controller lease expires; one that never joined the hub is
        judged by `lost_s`, since only the controller can tell the others.
        """
        others, is_joined = self._others(node), self._peer_status.is_joined
        if is_joined(node.name) and any(
            is_joined(other.name) and other.live_session and not other.has_ended for other in others
        ):
            return FOREVER
        if not is_joined(node.name) and others:
            return self._spec.lost_s
        if others and all(other.is_finished for other in others):
            return max(self._spec.lost_s, LAST_HOST_TIMEOUT_S)
        lease_s = self._spec.disconnect_s
        if not lease_s or node.name in self._peer_status.detached:
            return FOREVER
        return lease_s + self._spec.grace_s + STOP_TIMEOUT_S

    def _return_limit_s(self, node: AttemptNode) -> float:
        """Return how long to wait for an unreachable node that this controller may not lose."""
        others = self._others(node)
        if node.is_lost:
            return 0.0 if all(other.is_finished or other.is_lost for other in others) else FOREVER
        if any(other.live_session and not other.is_finished for other in others):
            return FOREVER
        if not node.supervisor_started:
            return self._spec.lost_s
        if others and all(other.is_finished for other in others):
            return max(self._spec.lost_s, LAST_HOST_TIMEOUT_S)
        return ATTACH_TIMEOUT_S

    def _give_up(
        self, node: AttemptNode, silence_s: float, *, awaits_rejoin: bool
    ) -> Judgement | None:
        backoff = node.connection.backoff
        if backoff is None or silence_s <= self._return_limit_s(node):
            return None
        present = (o for o in self._others(node) if o.state is not NodeState.UNVERIFIED)
        others_remain = not all(other.was_lost for other in present)
        is_excluded = self.relaunch_follows and node.is_lost and others_remain
        if not (is_excluded or awaits_rejoin or backoff.tries > 0):
            return None
        reason, is_news = f"it could not be reached: {backoff.reason}", not node.is_lost
        return Judgement(NodeState.UNVERIFIED, reason, show=is_news, record=is_news)
