"""What the hosts of an attempt have settled among themselves, as far as they told us."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runner.control.attempt.node import NodeState
from runner.control.attempt.observer import RunObserver
from runner.control.attempt.stop import StopSequence
from runner.control.rpc.session import HostSession
from runner.core.planning.build_plan import Plan
from runner.core.protocol.events import (
    Detached,
    EventBody,
    HubJoined,
    HubUnreachable,
    NotRelaunched,
    PeerLost,
    Relaunching,
    RelaunchPending,
)
from runner.core.protocol.frames import Frame


class PeerStatus:
    """Whether they keep in touch, whether they need us, and how they go on.

    Attributes:
        next_attempt_number: The attempt by which they follow up this one themselves; 0 for none.
        pending_standbys: The spares that were told to stand by and have not answered yet.
    """

    def __init__(
        self, plan: Plan, nodes: Mapping[str, NodeState], stop: StopSequence, observer: RunObserver
    ) -> None:
        self.next_attempt_number = 0
        self._hub, self._voters = plan.nodes[0].node, plan.nodes[0].order.voter_count
        self._nodes, self._stop, self._observer = nodes, stop, observer
        self.pending_standbys: set[str] = set()
        self._relaunch_decided = False
        self._joined_hub: set[str] = {self._hub}
        self._detached_by_voter = False

    def expect_standbys(self, spares: Iterable[str]) -> None:
        """These are told to stand by."""
        self.pending_standbys = set(spares)

    def on_standby_reply(self, session: HostSession, frame: Frame) -> None:
        """Take what came from a host that has no part in the attempt."""
        name = session.node.name
        if name not in self.pending_standbys or frame.kind not in (
            "following",
            "refused",
            "closed",
        ):
            return
        self.pending_standbys.discard(name)
        if frame.kind != "following":
            reason = frame.data["reason"]
            self._observer.message(f"{name} does not stand by: {reason}")

    def on_event(self, node: NodeState, body: EventBody) -> str:
        """Take in what a supervisor says of the others; return why all is to end, "" if not."""
        if isinstance(body, HubJoined):
            node.hub_joined = True
            self._joined_hub.add(node.name)
            self._nodes[self._hub].hub_joined = True
        elif isinstance(body, HubUnreachable):
            hint = ": open that port between the nodes, or set cluster.master_port"
            self._observer.message(
                f"{node.name} cannot reach {body.reason}; if {node.name} fails, only this process "
                f"can stop the others{'' if node.hub_joined else hint}"
            )
            node.hub_unreachable = True
        elif isinstance(body, Detached):
            node.detached = True
            self._detached_by_voter = self._detached_by_voter or node.name in self._joined_hub
        elif isinstance(body, (RelaunchPending, Relaunching, NotRelaunched)):
            self._on_relaunch_event(node, body)
        elif isinstance(body, PeerLost):
            peer = self._nodes.get(body.peer)
            if peer and not peer.ended:
                peer.lost = True
                self._observer.node_status(body.peer, "lost")
            return f"lost {body.peer}: {body.reason}"
        return ""

    def _on_relaunch_event(
        self, node: NodeState, body: RelaunchPending | Relaunching | NotRelaunched
    ) -> None:
        """Wait for what the hosts decide, and say it once."""
        if isinstance(body, RelaunchPending):
            self._stop.extend_deadline()
            self._observer.phase("waiting for what the hosts decide")
            return
        was_decided, self._relaunch_decided = self._relaunch_decided, True
        if isinstance(body, Relaunching):
            self.next_attempt_number = body.number
            nodes = ", ".join(body.nodes)
            message = f"the hosts start it once more: attempt {body.number + 1}, on {nodes}"
        else:
            message = f"{node.name}: it does not start once more: {body.reason}"
        if not was_decided:
            self._observer.message(message)

    @property
    def all_reported(self) -> bool:
        """Whether every host has reached the hub or said that it cannot, and every spare too."""
        reported = all(node.hub_joined or node.hub_unreachable for node in self._nodes.values())
        return (reported and not self.pending_standbys) or len(self._nodes) == 1

    @property
    def hosts_decide(self) -> bool:
        """Whether it is up to them whether the run starts once more, and not to us.

        A host that had not met the hub when it was told has no vote for that.
        """
        lease_disabled = all(not node.node_plan.order.disconnect_s for node in self._nodes.values())
        return self._voters > 0 and (lease_disabled or self._detached_by_voter)

    @property
    def hub_unreachable(self) -> bool:
        """Whether a host cannot reach the hub."""
        return any(node.hub_unreachable and not node.hub_joined for node in self._nodes.values())

    @property
    def any_detached(self) -> bool:
        """Whether a host said that the run goes on without any controller; they tell each other."""
        return any(node.detached for node in self._nodes.values())

    @property
    def all_detached(self) -> bool:
        """Whether the run goes on wherever we go."""
        lease_disabled = (not node.node_plan.order.disconnect_s for node in self._nodes.values())
        detached_or_gone = (
            node.detached or node.ended or node.lost for node in self._nodes.values()
        )
        return all(lease_disabled) or (self.any_detached and all(detached_or_gone))
