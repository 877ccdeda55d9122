"""Where torch numbers the ranks: who takes part, and whether a loss is the end of the run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence

from runner.control.attempt.admission import Joining
from runner.control.attempt.failure_detector import Vigil
from runner.control.attempt.node import NodeWatch
from runner.control.attempt.stop import Callbacks, Chronicle, Stop
from runner.control.rpc.session import Session
from runner.core.codec import encode
from runner.core.errors import NotReady
from runner.core.model.facts import Facts
from runner.core.outcome.exits import describe_exit
from runner.core.outcome.membership import Membership, Memberships
from runner.core.planning.build_plan import Plan
from runner.core.protocol.events import (
    Body,
    Cause,
    Ended,
    PeerLeft,
    PeerLost,
    ProgramExited,
    ProgramStarted,
    RankExited,
    RankStarted,
)

NAMED = 8
"""So many nodes are named one by one."""


class Elastic:
    """The memberships of one attempt, and the nodes that come and go.

    Attributes:
        joining: What takes nodes in; None where nobody does.
    """

    def __init__(
        self,
        plan: Callable[[], Plan],
        nodes: Mapping[str, NodeWatch],
        stop: Stop,
        vigil: Vigil,
        chronicle: Chronicle,
        tell: Callbacks,
    ) -> None:
        self.joining: Joining | None = None
        self._plan, self._nodes, self._stop, self._vigil = plan, nodes, stop, vigil
        self._chronicle, self._tell = chronicle, tell
        self._members = Memberships()
        self._failed: Membership | None = None
        self._finishing = False
        vigil.tolerates, vigil.rejoins = self._tolerates, self._rejoins

    def tick(self, now: float) -> None:
        """Try those once more that may join, if it is time."""
        if self.joining is not None and self._open:
            self.joining.look_after(now)

    def heed(self, node: NodeWatch, body: Body, at: float) -> bool:
        """Take what a node told of, which happened `at` on our clock.

        Returns:
            Whether that is all that is to be done about it.
        """
        if not self._plan().numbered_by_torch:
            return False
        if isinstance(body, ProgramStarted):
            self._began(node, body, at)
        if node.returning:
            return True
        if isinstance(body, RankStarted):
            self._started(node, body, at)
            return False
        return self._plan().restarts and self._heed_change(node, body, at)

    def _heed_change(self, node: NodeWatch, body: Body, at: float) -> bool:
        if isinstance(body, PeerLeft):
            self._left(node, body, at)
            return True
        if isinstance(body, RankExited):
            self._exited(node, body)
            return True
        if isinstance(body, PeerLost):
            return self._cut_off(node, body)
        alone = node.lost or node.idle  # what it does without the others is no matter of theirs
        if isinstance(body, Ended) and alone:
            node.ended = True
        elif isinstance(body, ProgramExited) and body.code == 0:
            node.done = True
            self._end_the_late()
        return alone

    def _end_the_late(self) -> None:
        """Once all is done, nobody can join: torch would look for the others for a minute."""
        last = self._members.last
        if last is None or not all(self._nodes[name].done for name in last.nodes):
            return
        for name, node in self._nodes.items():
            if name not in last.nodes and not node.lost and not node.ended and node.there:
                node.idle = True
                why = "the run had succeeded without it"
                node.there.request(
                    "say", {"word": "stop", "reason": why, "cause": Cause.PEER.value}
                )
                self._tell.say(f"{name} came too late: {why}")

    # Memberships

    def _began(self, node: NodeWatch, body: ProgramStarted, at: float) -> None:
        node.began_at = max(node.began_at, at)
        if body.again == node.share.order.again:
            node.returning = False
        if at > node.left_at:
            node.lost = False  # it was taken in again

    def _started(self, node: NodeWatch, body: RankStarted, at: float) -> None:
        """Say so when another membership is whole."""
        whole = self._members.started(node.name, body, at)
        if whole is None or whole is not self._members.last:
            return
        self._finishing = False
        if whole.number > 1:
            self._tell.say(described(whole))

    def _exited(self, node: NodeWatch, body: RankExited) -> None:
        """Say what failed first in a membership; torch ends the others by signals itself."""
        last = self._members.last
        if last is None or not last.has(node.name, body.rank, body.start):
            return
        self._finishing = self._finishing or body.ok
        by_torch = body.signal in (signal.SIGTERM, signal.SIGKILL) and not body.error
        if body.ok or by_torch or node.lost or self._failed is last or self._stop.wanted:
            return
        self._failed = last
        how = body.error or describe_exit(body.code, body.signal)
        self._tell.say(
            f"rank {body.rank} on {node.name} {how}; torch starts all ranks anew if it may"
        )

    # Losses

    def _left_without(self, node: NodeWatch) -> int:
        """Return with how many nodes the run goes on when this one is lost; 0 if that ends it."""
        plan, hub = self._plan(), node.share.order.hub
        service = node.share.order.service
        serves = service is not None and service.node == node.name
        if not plan.restarts or hub is None or serves or (hub.vital and hub.node == node.name):
            return 0
        left = sum(1 for each in self._nodes.values() if each is not node and not each.lost)
        return left if left >= (plan.least or len(plan.nodes)) else 0

    def _tolerates(self, node: NodeWatch, reason: str) -> bool:
        """Go on without a node of which only we know that it is lost, if that can be."""
        left = self._left_without(node)
        if not left or self._stop.wanted or not (self._vigil.fresh and self._vigil.acts):
            return False
        body = PeerLeft(node.name, reason, left)
        self._chronicle.note("", body, node.heard)
        self._let_go(node, reason, node.heard, left)
        for each in self._nodes.values():
            if each.there and not each.ended:
                each.there.request("say", {"word": "left", **encode(body)})
        return True

    def _left(self, teller: NodeWatch, body: PeerLeft, at: float) -> None:
        """The hub told that it goes on without a node, or others that they do without the hub."""
        peer, hub = self._nodes.get(body.peer), teller.share.order.hub
        if peer is None or hub is None or hub.node not in (teller.name, body.peer):
            return
        if hub.node == body.peer:  # nobody keeps in touch any more, but with us
            for each in self._nodes.values():
                each.joined = False
        if not peer.lost and not peer.ended and at > peer.began_at:
            self._let_go(peer, body.reason, at, self._left_without(peer) or body.nodes)

    def _cut_off(self, node: NodeWatch, body: PeerLost) -> bool:
        """Whether it is the one who is cut off, since it lost the hub, and the others go on."""
        hub = self._nodes.get(body.peer)
        left = self._left_without(node)
        alone = left == len(self._nodes) - 1 and hub is not None and hub.there is not None
        if not node.lost and alone and left and not self._stop.wanted and self._vigil.acts:
            self._let_go(node, f"it lost {body.peer}: {body.reason}", node.heard, left)
        return node.lost

    def _let_go(self, node: NodeWatch, reason: str, at: float, left: int) -> None:
        node.lost, node.left_at = True, at
        self._tell.state(node.name, "lost")
        with_whom = f"with {left} node{'' if left == 1 else 's'}" if left else "with the others"
        self._tell.say(f"{node.name} was lost ({reason}); the run goes on {with_whom}")
        self._expect(node, reason)

    # Nodes that join

    @property
    def _open(self) -> bool:
        """Whether nodes may join: the run is to go on, and no rank has finished."""
        return self._stop.wanted is None and not self._finishing

    def _rejoins(self, node: NodeWatch) -> bool:
        """Whether a node that was lost is left to what may take it in again."""
        wanted = self.joining is not None and self.joining.expects(node.name)
        return wanted and node.lost and self._open

    def _expect(self, node: NodeWatch, reason: str) -> None:
        node.drop()
        if node.away is None:
            node.depart(reason)
        if self.joining is not None:
            self.joining.expect([node.name], reason)

    def admitted(self, session: Session, facts: Facts) -> tuple[Plan, bytes] | None:
        """Return the plan with a node that is there now, and the record of it; None for no."""
        name, joining = session.node.name, self.joining
        if joining is None or not joining.expects(name) or not self._open:
            return None
        try:
            plan, record = joining.admission.admit(facts)
        except NotReady as error:
            joining.failed(name, error.problems[0].what)
            self.unfit(name, error.problems[0].what)
            return None
        joining.taken(name)
        return plan, record

    def unfit(self, name: str, why: str) -> None:
        """A node is there, and may not take part as it is: it is tried again."""
        if self.joining is not None and self.joining.news(name, why):
            self._tell.say(f"{name} cannot join: {why}; it is tried again")

    def refused(self, node: NodeWatch, why: str) -> bool:
        """Take it that a node did not take its order; return whether it is tried again.

        What it had before may not have ended yet.
        """
        if self.joining is None or not node.late or self._stop.wanted:
            return False
        node.lost = True
        left = sum(1 for each in self._nodes.values() if not each.lost)
        self._chronicle.note("", PeerLeft(node.name, why, left))
        self._expect(node, why)
        self.joining.failed(node.name, why)
        self.unfit(node.name, why)
        return True


def described(membership: Membership) -> str:
    """Return who takes part from now on, and what that changes."""
    nodes, ranks = len(membership.nodes), len(membership.ranks)
    changes = [
        f"{_some(names)} {word}"
        for names, word in ((membership.left, "left"), (membership.joined, "joined"))
        if names
    ]
    why = f" ({', '.join(changes) or 'the same nodes'})" if membership.compared else ""
    size = f"{nodes} node{'' if nodes == 1 else 's'}, {ranks} rank{'' if ranks == 1 else 's'}"
    return f"membership {membership.number}: {size}{why}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
