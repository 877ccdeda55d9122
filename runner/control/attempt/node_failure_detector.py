"""Failure detector of the controller: judge silent nodes, and give up on lost ones.

A broken connection changes nothing for the ranks: it is opened again. The supervisors detect each
other's failures through the hub; the controller declares a node lost only where they cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from runner.control.attempt.attempt import Attempt
from runner.control.attempt.node import AttemptNode, NodeState
from runner.control.rpc.bootstrap import BOOT_TIMEOUT_S
from runner.control.rpc.wait import NO_ANSWER
from runner.core.wire.timing import ANSWER_TIMEOUT_S, STOP_TIMEOUT_S, FailureDetector

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
    state: NodeState
    reason: str
    show: bool = False
    record: bool = False  # that the end of the node is not verified


class NodeFailureDetector:
    """Judges the nodes of one attempt; the monitor acts on the judgements."""

    def __init__(self, attempt: Attempt) -> None:
        self.relaunch_follows = False  # then the end of a lost node is not awaited
        self._attempt = attempt
        self._spec = attempt.spec
        self._nodes = attempt.nodes
        self._detector = FailureDetector(attempt.spec.lost_s)

    def may_judge(self, now: float) -> bool:
        """Return whether nodes may be judged now: not just after this machine was asleep."""
        return self._detector.check(now)

    def silent_connection(self, node: AttemptNode) -> str:
        """Return why the session of a node must be replaced, "" if it need not."""
        session = node.connection.session
        limit = self._spec.lost_s
        if session is None:
            return ""
        if not session.handshake_done:
            limit = max(limit, BOOT_TIMEOUT_S)
        is_silent = session.idle_s > limit
        return f"nothing was heard from it for {session.idle_s:.0f} s" if is_silent else ""

    def judge(self, node: AttemptNode, now: float, stop_deadline: float) -> Judgement | None:
        """Return how a node that is not finished should move on, None for not at all."""
        silence_s = now - node.connection.last_heard
        if node.has_ended:
            timeout_s = self._spec.lost_s if node.connection.backoff else DRAIN_TIMEOUT_S
            is_late = now - node.last_data > timeout_s
            reason = "the last of its logs did not arrive"
            return Judgement(NodeState.COMPLETE, reason, show=True) if is_late else None
        if now > stop_deadline:
            reason = "it did not report its end"
            if node.disk_wait_s:
                reason = f"its disk has not answered for {node.disk_wait_s:.0f} s"
            return Judgement(NodeState.UNVERIFIED, reason, record=True)
        if node.is_lost or not self._attempt.is_launch:
            return self._give_up(node, now, silence_s)
        if self._detector.is_lost(silence_s, self._lost_limit_s(node)):
            reason = f"nothing was heard from it for {silence_s:.0f} s"
            reason = NO_ANSWER if node.connection.is_unanswered else reason
            return Judgement(NodeState.LOST, reason)
        is_starting = not node.supervisor_started and node.live_session
        limit_s = ANSWER_TIMEOUT_S if node.disk_wait_s else START_TIMEOUT_S
        if is_starting and now > node.last_data + limit_s:
            reason = f"its supervisor did not start within {limit_s:.0f} s"
            return Judgement(NodeState.LOST, reason)
        return None

    def _others(self, node: AttemptNode) -> Iterator[AttemptNode]:
        return (other for other in self._nodes.values() if other is not node)

    def _is_in_touch(self, node: AttemptNode) -> bool:
        """Return whether a node would report the loss of another."""
        return node.is_joined and node.is_reachable and not node.has_ended

    def _lost_limit_s(self, node: AttemptNode) -> float:
        """Return how long a node may be silent before it counts as lost.

        As long as others are in touch with it, they report its loss. A supervisor that is in touch
        with no other goes on until its controller lease expires; one that never joined the hub is
        judged by `lost_s`, since only the controller can tell the others.
        """
        is_alone = len(self._nodes) == 1
        if node.is_joined and any(map(self._is_in_touch, self._others(node))):
            return FOREVER
        if not node.is_joined and not is_alone:
            return self._spec.lost_s
        if not is_alone and all(other.is_finished for other in self._others(node)):
            return max(self._spec.lost_s, LAST_HOST_TIMEOUT_S)
        lease_s = self._spec.disconnect_s
        if not lease_s or node.is_detached:
            return FOREVER
        return lease_s + self._spec.grace_s + STOP_TIMEOUT_S

    def _return_limit_s(self, node: AttemptNode) -> float:
        """Return how long to wait for an unreachable node that this controller may not lose."""
        if node.is_lost:
            gone = all(other.is_finished or other.is_lost for other in self._others(node))
            return 0.0 if gone else FOREVER
        if any(other.is_reachable for other in self._others(node)):
            return FOREVER
        if node.tailer.once or not node.supervisor_started:
            return self._spec.lost_s
        if len(self._nodes) > 1 and all(other.is_finished for other in self._others(node)):
            return max(self._spec.lost_s, LAST_HOST_TIMEOUT_S)
        return ATTACH_TIMEOUT_S

    def _give_up(self, node: AttemptNode, now: float, silence_s: float) -> Judgement | None:
        owes_answer = node.live_session and (node.tailer.once or not node.supervisor_started)
        if owes_answer and now > node.last_data + ANSWER_TIMEOUT_S:
            return Judgement(NodeState.UNVERIFIED, NO_ANSWER, show=True, record=True)
        backoff = node.connection.backoff
        is_unanswered = node.connection.is_unanswered
        is_reached = node.connection.session is not None and not is_unanswered
        if backoff is None or is_reached:
            return None
        if silence_s <= self._return_limit_s(node):
            return None
        others_remain = not all(other.is_absent for other in self._others(node))
        is_excluded = self.relaunch_follows and node.is_lost and others_remain
        is_untried = not (backoff.tries or is_unanswered)
        if is_untried and not is_excluded:
            return None  # it is tried once at least
        reason = f"it could not be reached: {backoff.reason}"
        is_news = not node.is_lost
        reason = NO_ANSWER if is_unanswered else reason
        return Judgement(NodeState.UNVERIFIED, reason, show=is_news, record=is_news)
