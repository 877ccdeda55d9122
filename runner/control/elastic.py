"""Where torch numbers the ranks: who takes part, and whether a loss is the end of the run."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence

from runner.control.contacted import NodeWatch
from runner.control.stopping import Callbacks
from runner.core.events import RankExited, RankStarted
from runner.core.exits import describe_exit
from runner.core.membership import Membership, Memberships
from runner.core.plan import Plan


class Elastic:
    """The memberships of one attempt.

    Attributes:
        finishing: Whether a rank of the last membership has succeeded: nobody joins any more.
    """

    def __init__(self, plan: Plan, nodes: Mapping[str, NodeWatch], tell: Callbacks) -> None:
        self.finishing = False
        self._plan, self._nodes, self._tell = plan, nodes, tell
        self._members = Memberships()
        self._failed: Membership | None = None

    def started(self, node: str, body: RankStarted, at: float) -> None:
        """Take a start of a rank; say so when that makes another membership whole."""
        if not self._plan.numbered_by_torch:
            return
        whole = self._members.started(node, body, at)
        if whole is None or whole is not self._members.last:
            return
        self.finishing = False
        if whole.number > 1:
            self._tell.say(described(whole))

    def exited(self, node: str, body: RankExited) -> None:
        """Take how a rank ended that torch may start anew; the first failure is said."""
        last = self._members.last
        if last is None or not last.has(node, body.rank, body.start):
            return
        self.finishing = self.finishing or body.ok
        ended_by_torch = body.signal in (signal.SIGTERM, signal.SIGKILL) and not body.error
        if body.ok or ended_by_torch or self._failed is last:
            return
        self._failed = last
        how = body.error or describe_exit(body.code, body.signal)
        self._tell.say(f"rank {body.rank} on {node} {how}; torch starts the ranks anew if it may")

    def goes_on_without(self, node: NodeWatch) -> int:
        """Return with how many nodes the run goes on when this one is lost; 0 if that ends it."""
        if not self._plan.restarts:
            return 0
        hub = node.share.order.hub
        if hub is None or (hub.vital and hub.node == node.name):
            return 0
        left = sum(1 for each in self._nodes.values() if each is not node and not each.lost)
        return left if left >= max(1, self._plan.least or len(self._plan.nodes)) else 0

    def lose(self, node: NodeWatch, reason: str, left: int) -> None:
        """Take it that the run goes on without a node."""
        node.lost = True
        node.left_at = time.monotonic()
        self._tell.state(node.name, "lost")
        with_whom = f"with {left} node{'' if left == 1 else 's'}" if left else "with the others"
        self._tell.say(f"{node.name} was lost ({reason}); the run goes on {with_whom}")


NAMED = 8
"""So many nodes are named one by one."""


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def described(membership: Membership) -> str:
    """Return who takes part from now on, and what that changes."""
    nodes, ranks = len(membership.nodes), len(membership.ranks)
    changes = [
        f"{_some(names)} {word}"
        for names, word in ((membership.left, "left"), (membership.joined, "joined"))
        if names
    ]
    why = ", ".join(changes) or "the same nodes"
    size = f"{nodes} node{'' if nodes == 1 else 's'}, {ranks} rank{'' if ranks == 1 else 's'}"
    return f"membership {membership.number}: {size} ({why})"
