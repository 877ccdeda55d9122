"""Peer status: what supervisors of an attempt reported about each other and about a relaunch."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from runner.control.attempt.node import AttemptNode
from runner.core.model.plan import Plan
from runner.core.planning.build_plan import FoldNames
from runner.core.protocol import events
from runner.core.protocol.events import EventBody
from runner.core.protocol.frames import Frame
from runner.core.text import counted, signal_name

STANDBY_REPLIES = ("following", "refused", "closed")


class HubStatus(enum.Enum):
    """Whether a supervisor is in touch with the others through the hub."""

    UNREACHABLE = "unreachable"
    JOINED = "joined"


class PeerStatus:
    """Whether supervisors are in touch, whether they need a controller, and what they decided."""

    def __init__(
        self, plan: Plan, nodes: Mapping[str, AttemptNode], fold_names: FoldNames = ", ".join
    ) -> None:
        self.next_attempt_number = 0  # by which the hosts relaunch the run themselves; 0 for none
        self.pending_standbys: set[str] = set()  # they got a standby order, and have not answered
        self._nodes, self._fold_names = nodes, fold_names
        self._hub, self._voter_count = plan.nodes[0].node, plan.nodes[0].order.voter_count
        self._began_detached = all(share.order.detached for share in plan.nodes)
        self._hub_status: dict[str, HubStatus] = {}
        self._ever_joined = {self._hub}
        self.detached: set[str] = set()  # the nodes that go on without a controller
        self._detached_by_voter = self._relaunch_decided = False

    def on_standby_reply(self, name: str, frame: Frame) -> str:
        """Take the answer of a spare to its standby order; return a message, "" for none."""
        if name not in self.pending_standbys or frame.kind not in STANDBY_REPLIES:
            return ""
        self.pending_standbys.discard(name)
        if frame.kind == "following":
            return ""
        return f"{name} does not stand by: {frame.data['reason']}"

    def on_event(self, name: str, body: EventBody) -> str:
        """Take what the supervisor of a node reported; return a message, "" for none."""
        if isinstance(body, events.HubJoined):
            self._ever_joined.add(name)
            self._hub_status[name] = self._hub_status[self._hub] = HubStatus.JOINED
        elif isinstance(body, events.HubUnreachable):
            return self._on_hub_unreachable(name, body)
        elif isinstance(body, events.Detached):
            self.detached.add(name)
            self._detached_by_voter = self._detached_by_voter or name in self._ever_joined
        elif isinstance(body, events.RanksSignalled):
            ranks = counted(body.count, "rank")
            return f"{name}: the job's time limit is near; {signal_name(body.signal)} to {ranks}"
        elif isinstance(body, events.NotificationFailed):
            return f"{name}: {body.text}"
        elif isinstance(body, (events.Relaunching, events.NotRelaunched)):
            return self._on_relaunch_decision(name, body)
        return ""

    def _on_hub_unreachable(self, name: str, body: events.HubUnreachable) -> str:
        hint = ""
        if not self.is_joined(name):
            self._hub_status[name] = HubStatus.UNREACHABLE
        if not self.is_joined(name) and not self._nodes[self._hub].disk_wait_s:
            hint = ": open that port between the nodes, or set cluster.master_port"
        consequence = f"if {name} fails, only this process can stop the others"
        return f"{name} cannot reach {body.reason}; {consequence}{hint}"

    def _on_relaunch_decision(
        self, name: str, body: events.Relaunching | events.NotRelaunched
    ) -> str:
        """Return the decision as a message, once."""
        was_decided, self._relaunch_decided = self._relaunch_decided, True
        if isinstance(body, events.Relaunching):
            self.next_attempt_number = body.number
            nodes = self._fold_names(body.nodes)
            message = f"the hosts relaunch the run: attempt {body.number + 1}, on {nodes}"
        else:
            message = f"{name}: not relaunching: {body.reason}"
        return "" if was_decided else message

    def on_hub_lost(self) -> None:
        """Take every node as out of touch with the others: the hub left the membership."""
        self._hub_status = dict.fromkeys(self._nodes, HubStatus.UNREACHABLE)

    def on_rejoin(self, name: str) -> None:
        """Forget what the supervisor of a node reported: a new one starts there."""
        self._hub_status.pop(name, None)
        self.detached.discard(name)

    def is_joined(self, name: str) -> bool:
        """Return whether the supervisor of a node is in touch with the others."""
        return self._hub_status.get(name) is HubStatus.JOINED

    @property
    def all_reported(self) -> bool:
        """Whether every host has reached the hub or reported that it cannot, and every spare."""
        reported = self._nodes.keys() <= self._hub_status.keys()
        return (reported and not self.pending_standbys) or len(self._nodes) == 1

    @property
    def hosts_decide(self) -> bool:
        """Whether the hosts, and not this controller, decide about a relaunch."""
        # A host that had not met the hub when it was detached has no vote.
        return self._voter_count > 0 and (self._began_detached or self._detached_by_voter)

    @property
    def hosts_may_decide(self) -> bool:
        """Whether so many have not shown their end that these may relaunch the run themselves."""
        silent_count = sum(not node.has_ended for node in self._nodes.values())
        return 0 < self._voter_count < 2 * silent_count

    @property
    def hub_unreachable(self) -> bool:
        """Whether a host cannot reach the hub."""
        return HubStatus.UNREACHABLE in self._hub_status.values()

    @property
    def all_detached(self) -> bool:
        """Whether every supervisor has confirmed the detach, so the controller may exit."""
        others = (node for name, node in self._nodes.items() if name not in self.detached)
        need_none = bool(self.detached) and all(o.has_ended or o.is_lost for o in others)
        return self._began_detached or need_none
