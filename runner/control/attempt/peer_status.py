"""What the hosts of an attempt have settled among themselves, as far as they told us."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runner.control.attempt.node import NodeWatch
from runner.control.attempt.stop import Callbacks, Stop
from runner.control.rpc.session import Session
from runner.core.planning.build_plan import Plan
from runner.core.protocol.events import (
    Apart,
    Body,
    Joined,
    Kept,
    NotRelaunched,
    PeerLost,
    Regrouping,
    Relaunching,
)
from runner.core.protocol.frames import Frame


class Accord:
    """Whether they keep in touch, whether they need us, and how they go on.

    Attributes:
        onward: The attempt by which they follow up this one themselves; 0 for none.
        coming: The spares that were told to stand by and have not answered yet.
    """

    def __init__(
        self, plan: Plan, nodes: Mapping[str, NodeWatch], stop: Stop, tell: Callbacks
    ) -> None:
        self.onward = 0
        self._hub, self._voters = plan.nodes[0].node, plan.nodes[0].order.voters
        self._nodes, self._stop, self._tell = nodes, stop, tell
        self.coming: set[str] = set()
        self._decided = False
        self._met: set[str] = {self._hub}
        self._kept_by_voter = False

    def expect(self, spares: Iterable[str]) -> None:
        """These are told to stand by."""
        self.coming = set(spares)

    def of_spare(self, session: Session, frame: Frame) -> None:
        """Take what came from a host that has no part in the attempt."""
        name = session.node.name
        if name not in self.coming or frame.kind not in ("going", "refused", "closed"):
            return
        self.coming.discard(name)
        if frame.kind != "going":
            why = frame.data["why" if frame.kind == "refused" else "reason"]
            self._tell.say(f"{name} does not stand by: {why}")

    def heed(self, node: NodeWatch, body: Body) -> str:
        """Take in what a supervisor says of the others; return why all is to end, "" if not."""
        if isinstance(body, Joined):
            node.joined = True
            self._met.add(node.name)
            self._nodes[self._hub].joined = True
        elif isinstance(body, Apart):
            cure = ": open that port between the nodes, or set cluster.master_port"
            self._tell.say(
                f"{node.name} cannot reach {body.reason}; if {node.name} fails, only this process "
                f"can stop the others{'' if node.joined else cure}"
            )
            node.apart = True
        elif isinstance(body, Kept):
            node.kept = True
            self._kept_by_voter = self._kept_by_voter or node.name in self._met
        elif isinstance(body, (Regrouping, Relaunching, NotRelaunched)):
            self._goes_on(node, body)
        elif isinstance(body, PeerLost):
            peer = self._nodes.get(body.peer)
            if peer and not peer.ended:
                peer.lost = True
                self._tell.state(body.peer, "lost")
            return f"lost {body.peer}: {body.reason}"
        return ""

    def _goes_on(self, node: NodeWatch, body: Regrouping | Relaunching | NotRelaunched) -> None:
        """Wait for what the hosts decide, and say it once."""
        if isinstance(body, Regrouping):
            self._stop.wait_for_hosts()
            self._tell.phase("waiting for what the hosts decide")
            return
        told, self._decided = self._decided, True
        if isinstance(body, Relaunching):
            self.onward = body.number
            nodes = ", ".join(body.nodes)
            what = f"the hosts start it once more: attempt {body.number + 1}, on {nodes}"
        else:
            what = f"{node.name}: it does not start once more: {body.reason}"
        if not told:
            self._tell.say(what)

    @property
    def settled(self) -> bool:
        """Whether every host has reached the hub or said that it cannot, and every spare too."""
        settled = all(node.joined or node.apart for node in self._nodes.values())
        return (settled and not self.coming) or len(self._nodes) == 1

    @property
    def decides(self) -> bool:
        """Whether it is up to them whether the run starts once more, and not to us.

        A host that had not met the hub when it was told has no vote for that.
        """
        needless = all(not node.share.order.disconnect_s for node in self._nodes.values())
        return self._voters > 0 and (needless or self._kept_by_voter)

    @property
    def apart(self) -> bool:
        """Whether a host cannot reach the hub."""
        return any(node.apart and not node.joined for node in self._nodes.values())

    @property
    def kept_by_any(self) -> bool:
        """Whether a host said that the run goes on without any controller; they tell each other."""
        return any(node.kept for node in self._nodes.values())

    @property
    def kept(self) -> bool:
        """Whether the run goes on wherever we go."""
        keeps = (not node.share.order.disconnect_s for node in self._nodes.values())
        gone = (node.kept or node.ended or node.lost for node in self._nodes.values())
        return all(keeps) or (self.kept_by_any and all(gone))
