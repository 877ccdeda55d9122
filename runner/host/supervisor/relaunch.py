"""Whether a run that failed here starts once more by the will of its hosts, and what is done then.

While a controller is needed, that decides instead; never both do.
"""

from __future__ import annotations

from typing import Callable, Dict, NamedTuple, Optional, Set

from runner.core.model.order import Order
from runner.core.outcome.stacks import STALL_REASON
from runner.core.protocol.events import NotRelaunched, Relaunching, RelaunchPending, StopCause
from runner.core.protocol.paths import RunPaths
from runner.host.facts import ports
from runner.host.peers.election import ElectionContext, LeaderElection
from runner.host.process.event_loop import EventLoop
from runner.host.storage.journal import EventLog
from runner.host.storage.run_folder import create_run_folder


class AttemptEnd(NamedTuple):
    """How an attempt ended on this host.

    Attributes:
        reason: Why it was stopped, "" if it was not.
        cause: Whose wish that was.
        failed_at: When something of it failed here that no other host is to blame for, by our
            monotonic clock; None if nothing did.
        lost_nodes: The nodes it lost.
        joined_hub: Whether this host was in touch with the others.
        detach_agreed: Whether the hosts agree that it goes on without a controller.
    """

    reason: str
    cause: StopCause
    failed_at: Optional[float]
    lost_nodes: Set[str]
    joined_hub: bool
    detach_agreed: bool


class NextAttempt(NamedTuple):
    """The next attempt, on this host."""

    order: Order
    reserved_ports: ports.ReservedPorts
    election_context: ElectionContext


class HostRelaunch:
    """The election of one attempt, if its hosts can hold one."""

    def __init__(
        self,
        order: Order,
        election_context: Optional[ElectionContext],
        environ: Dict[str, str],
        journal: EventLog,
    ) -> None:
        self._order, self._election_context, self._environ = order, election_context, environ
        self._journal = journal
        self._election: Optional[LeaderElection] = None

    def listen(
        self,
        reserved_ports: ports.ReservedPorts,
        token: bytes,
        loop: EventLoop,
    ) -> None:
        """Listen to the other hosts from now on, where they may decide."""
        order = self._order
        if self._election_context is None or not order.voter_count:
            return
        self._election = LeaderElection(
            order, self._election_context, self._environ, reserved_ports.voter, token, loop
        )

    def tick(self) -> None:
        """Go on with what others ask of us."""
        if self._election is not None:
            self._election.tick()

    def cancel(self, reason: str) -> None:
        """The user wants no other attempt."""
        if self._election is not None:
            self._election.cancel(reason)

    @property
    def is_undecided(self) -> bool:
        """Whether the hosts could decide about it."""
        return self._election is not None and self._election.decision is None

    def is_eligible(self, attempt_end: AttemptEnd) -> bool:
        """Whether the hosts are to decide about it."""
        election, order = self._election, self._order
        if election is None or not self.is_undecided or not attempt_end.detach_agreed:
            return False
        if attempt_end.cause is StopCause.USER or not attempt_end.reason:
            return False
        if attempt_end.reason.startswith(STALL_REASON) and not election.relaunch_on_stall:
            return False
        return order.hub is None or order.hub.node == order.node or attempt_end.joined_hub

    def decide(self, attempt_end: AttemptEnd, poll: Callable[[], str]) -> None:
        """Have the hosts decide.

        Args:
            attempt_end: How this attempt ended here.
            poll: Waits for a moment, and returns why to give up, "" for no reason.
        """
        election = self._election
        assert election is not None  # noqa: S101 (asked before)
        self._journal.append(RelaunchPending())
        stalled = attempt_end.reason.startswith(STALL_REASON)  # who saw that says nothing
        election.start(
            attempt_end.reason, None if stalled else attempt_end.failed_at, attempt_end.lost_nodes
        )
        while election.decision is None:
            abort_reason = poll()
            election.tick()
            if abort_reason:
                election.withdraw(abort_reason)
        reason, order, handover, _ = election.decision
        if order is None or handover is None:
            self._journal.append(NotRelaunched(reason))
        else:
            nodes = tuple(node.name for node in handover.spec.nodes)
            self._journal.append(Relaunching(order.attempt, nodes, reason))

    def next_start(self, folder: RunPaths) -> Optional[NextAttempt]:
        """Return what is to be done here next, written down; None where nothing is.

        Raises:
            OSError: It cannot be written down.
        """
        election, context = self._election, self._election_context
        if election is None or election.decision is None or context is None:
            return None
        _, order, handover, record = election.decision
        if order is None or handover is None:
            return None
        create_run_folder(folder, order, context.programs, record)
        return NextAttempt(order, election.reserved_ports, context._replace(handover=handover))

    def close(self) -> None:
        """Leave nothing open."""
        if self._election is not None:
            self._election.close()
