"""Peer status: what supervisors of an attempt reported about each other and about a relaunch."""

from __future__ import annotations

from runner.control.attempt.attempt import Attempt
from runner.control.attempt.node import AttemptNode
from runner.core.errors import fold_names
from runner.core.wire import events
from runner.core.wire.codec import Frame
from runner.core.wire.events import EventBody
from runner.core.wire.text import counted, signal_name


class PeerStatus:
    """Whether supervisors are in touch, whether they need a controller, and what they decided."""

    def __init__(self, attempt: Attempt) -> None:
        self.next_attempt_number = 0  # by which the hosts relaunch the run themselves; 0 for none
        self.pending_standbys: set[str] = set()  # they got a standby order, and have not answered
        self._attempt = attempt
        self._hub = attempt.plan.nodes[0].node
        self._began_detached = all(share.order.detached for share in attempt.plan.nodes)
        self._hub_is_detached = False  # it says so, or who has met it
        self._has_decided = False

    def on_standby_reply(self, name: str, frame: Frame) -> None:
        is_reply = frame.kind in ("following", "refused", "closed")
        if name in self.pending_standbys and is_reply:
            self.pending_standbys.discard(name)
            if frame.kind != "following":
                self._attempt.say(f"{name} does not stand by: {frame.data['reason']}")

    @property
    def _hub_node(self) -> AttemptNode:
        return self._attempt.nodes[self._hub]

    def on_event(self, node: AttemptNode, body: EventBody) -> None:
        name = node.name
        if isinstance(body, events.HubJoined):
            for joined in (node, self._hub_node):
                joined.is_joined = True
                joined.is_cut_off = False
        elif isinstance(body, events.HubUnreachable):
            self._on_hub_unreachable(node, body)
        elif isinstance(body, events.Detached):
            node.is_detached = True
            self._hub_is_detached |= node.is_joined or node is self._hub_node
        elif isinstance(body, events.RanksSignalled):
            told = f"{signal_name(body.signal)} to {counted(body.count, 'rank')}"
            self._attempt.say(f"{name}: the job's time limit is near; {told}")
        elif isinstance(body, events.NotificationFailed):
            self._attempt.say(f"{name}: {body.text}")
        elif isinstance(body, events.Relaunching):
            self.next_attempt_number = body.number
            nodes = fold_names(body.nodes)
            self._on_decided(f"the hosts relaunch the run: attempt {body.number + 1}, on {nodes}")
        elif isinstance(body, events.NotRelaunched):
            self._on_decided(f"{name}: not relaunching: {body.reason}")

    def _on_hub_unreachable(self, node: AttemptNode, body: events.HubUnreachable) -> None:
        hint = ""
        if not node.is_joined:
            node.is_cut_off = True
            if not self._hub_node.disk_wait_s:
                hint = ": open that port between the nodes, or set cluster.master_port"
        consequence = f"if {node.name} fails, only this process can stop the others"
        self._attempt.say(f"{node.name} cannot reach {body.reason}; {consequence}{hint}")

    def _on_decided(self, message: str) -> None:
        """Show, once, what the hosts have decided about a relaunch."""
        if not self._has_decided:
            self._attempt.say(message)
        self._has_decided = True

    def on_hub_lost(self) -> None:
        """Take every node as out of touch with the others: the hub left the membership."""
        for node in self._attempt.nodes.values():
            node.is_joined = False
            node.is_cut_off = True

    @property
    def all_reported(self) -> bool:
        """Whether every host has reached the hub or reported that it cannot, and every spare."""
        nodes = self._attempt.nodes
        have_reported = all(node.is_joined or node.is_cut_off for node in nodes.values())
        return (have_reported and not self.pending_standbys) or len(nodes) == 1

    @property
    def hosts_decide(self) -> bool:
        """Whether the hosts, and not this controller, decide about a relaunch."""
        return self._hosts_can_relaunch and (self._began_detached or self._hub_is_detached)

    @property
    def hosts_may_decide(self) -> bool:
        """Whether the hub and enough others are out of reach: they may relaunch the run."""
        plan = self._attempt.plan
        nodes = self._attempt.nodes
        if not self._hosts_can_relaunch or self._hub_node.has_ended:
            return False
        silent = [name for name, node in nodes.items() if not node.has_ended]
        silent += [share.node for share in plan.spares if self._attempt.is_silent(share.node)]
        # A hub alone relaunches nothing that others take part in.
        least = 2 if len(plan.nodes) + len(plan.spares) > 1 else 1
        return len(silent) >= max(plan.min_nodes or len(plan.nodes), least)

    @property
    def _hosts_can_relaunch(self) -> bool:
        shares = self._attempt.plan.nodes
        order = shares[0].order
        return order.relaunches_left > 0 and (order.hub is not None or len(shares) == 1)

    @property
    def hub_unreachable(self) -> bool:
        return any(node.is_cut_off for node in self._attempt.nodes.values())

    @property
    def any_detached(self) -> bool:
        return any(node.is_detached for node in self._attempt.nodes.values())

    @property
    def all_detached(self) -> bool:
        """Whether every supervisor has confirmed the detach, so the controller may exit."""
        others = [node for node in self._attempt.nodes.values() if not node.is_detached]
        need_none = self.any_detached and all(o.has_ended or o.is_lost for o in others)
        return self._began_detached or need_none
