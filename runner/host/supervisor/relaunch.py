"""Whether a run that failed here starts once more by the will of its hosts, and what is done then.

While a controller is needed, that decides instead; never both do.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Set

from runner.core.model.order import Order
from runner.core.outcome.stacks import STALLED
from runner.core.protocol.events import Cause, NotRelaunched, Regrouping, Relaunching
from runner.core.protocol.paths import RunFolder
from runner.host.facts import ports
from runner.host.peers.election import Election, Means
from runner.host.peers.election_links import Ring
from runner.host.storage.run_folder import Journal, prepare


class Last(NamedTuple):
    """How an attempt ended on this host.

    Attributes:
        reason: Why it was stopped, "" if it was not.
        cause: Whose wish that was.
        failed_at: When something of it failed here that no other host is to blame for, by our
            monotonic clock; None if nothing did.
        lost: The nodes it lost.
        met: Whether this host was in touch with the others.
        kept: Whether the hosts agree that it goes on without a controller.
    """

    reason: str
    cause: Cause
    failed_at: Optional[float]
    lost: Set[str]
    met: bool
    kept: bool


class Onward(NamedTuple):
    """The next attempt, on this host."""

    order: Order
    held: ports.Held
    means: Means


class Aftermath:
    """The election of one attempt, if its hosts can hold one."""

    def __init__(
        self, order: Order, means: Optional[Means], environ: Dict[str, str], journal: Journal
    ) -> None:
        self._order, self._means, self._environ = order, means, environ
        self._journal = journal
        self._election: Optional[Election] = None

    def prepare(
        self, held: ports.Held, token: bytes, watch: Callable[..., Any], unwatch: Callable[..., Any]
    ) -> None:
        """Listen to the other hosts from now on, where they may decide."""
        order = self._order
        if self._means is None or not order.voters:
            return
        about = f"{order.run_id}/{order.attempt}/voters"
        ring = Ring(order.node, about, token, watch, unwatch)
        self._election = Election(order, self._means, self._environ, held.voter, ring)

    def tick(self) -> None:
        """Go on with what others ask of us."""
        if self._election is not None:
            self._election.tick()

    def end(self, reason: str) -> None:
        """The user wants no other attempt."""
        if self._election is not None:
            self._election.end(reason)

    @property
    def possible(self) -> bool:
        """Whether the hosts could decide about it."""
        return self._election is not None and self._election.decision is None

    def may_follow(self, last: Last) -> bool:
        """Whether the hosts are to decide about it."""
        election, order = self._election, self._order
        if election is None or not self.possible or not last.kept:
            return False
        if last.cause is Cause.USER or not last.reason:
            return False
        if last.reason.startswith(STALLED) and not election.restarts_stalled:
            return False
        return order.hub is None or order.hub.node == order.node or last.met

    def decide(self, last: Last, wait: Callable[[], str]) -> None:
        """Have the hosts decide.

        Args:
            last: How this attempt ended here.
            wait: Waits for a moment, and returns why to give up, "" for no reason.
        """
        election = self._election
        assert election is not None  # noqa: S101 (asked before)
        self._journal.append(Regrouping())
        stalled = last.reason.startswith(STALLED)  # who saw that says nothing
        election.begin(last.reason, None if stalled else last.failed_at, last.lost)
        while election.decision is None:
            why = wait()
            election.tick()
            if why:
                election.give_up(why)
        reason, order, handover, _ = election.decision
        if order is None or handover is None:
            self._journal.append(NotRelaunched(reason))
        else:
            nodes = tuple(node.name for node in handover.spec.nodes)
            self._journal.append(Relaunching(order.attempt, nodes, reason))

    def onward(self, folder: RunFolder) -> Optional[Onward]:
        """Return what is to be done here next, written down; None where nothing is.

        Raises:
            OSError: It cannot be written down.
        """
        election, means = self._election, self._means
        if election is None or election.decision is None or means is None:
            return None
        _, order, handover, record = election.decision
        if order is None or handover is None:
            return None
        prepare(folder, order, means.programs, record)
        return Onward(order, election.held, means._replace(handover=handover))

    def close(self) -> None:
        """Leave nothing open."""
        if self._election is not None:
            self._election.close()
