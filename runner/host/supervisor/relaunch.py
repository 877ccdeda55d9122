"""Relaunch by the hosts: the supervisor's part in whether another attempt follows a failed one.

While a controller is needed, the controller decides instead; never both do.
"""

from __future__ import annotations

from typing import Callable, Optional

from runner.core.codec import encode
from runner.core.protocol.events import NotRelaunched, Relaunching, RelaunchPending, StopCause
from runner.core.relaunch.handover import AttemptEnd
from runner.core.relaunch.policy import allows_relaunch
from runner.host.peers.election import LeaderElection
from runner.host.process.event_loop import EventLoop
from runner.host.storage.journal import EventLog
from runner.host.storage.run_folder import create_run_folder
from runner.host.supervisor.args import SupervisorArgs


class HostRelaunch:
    """The election after one attempt, if its hosts can hold one."""

    def __init__(self, args: SupervisorArgs, journal: EventLog) -> None:
        self._args, self._journal = args, journal
        self._election: Optional[LeaderElection] = None

    def listen(self, loop: EventLoop) -> None:
        """Listen to the other hosts from now on, where they may decide."""
        args = self._args
        if args.election_context is not None and args.order.voter_count:
            self._election = LeaderElection(
                *(args.order, args.election_context, args.environ),
                *(args.reserved_ports.voter, args.token, loop),
            )

    def tick(self) -> None:
        """Answer what the other hosts ask."""
        if self._election is not None:
            self._election.tick()

    def cancel(self, reason: str) -> None:
        """Have no other attempt follow, since a user stopped the run."""
        if self._election is not None:
            self._election.cancel(reason)

    @property
    def is_undecided(self) -> bool:
        """Whether the hosts can decide, and have not."""
        return self._election is not None and not self._election.is_decided

    def is_eligible(self, end: AttemptEnd) -> bool:
        """Return whether the hosts are to decide after an attempt that ended so."""
        context, hub = self._args.election_context, self._args.order.hub
        if context is None or not self.is_undecided or not end.detach_agreed:
            return False
        if end.cause is StopCause.USER or not end.reason:
            return False
        if not allows_relaunch(context.handover.spec, end.reason):
            return False
        return hub is None or hub.node == self._args.order.node or end.joined_hub

    def decide(self, end: AttemptEnd, poll: Callable[[], str]) -> None:
        """Hold the election.

        Args:
            end: How this attempt ended here.
            poll: Waits for a moment, and returns why to give up, "" for no reason.
        """
        election = self._election
        assert election is not None  # noqa: S101 (see `is_eligible`)
        self._journal.append(RelaunchPending())
        election.start(end)
        while not election.is_decided:
            abort_reason = poll()
            election.tick()
            if abort_reason:
                election.withdraw(abort_reason)
        if election.next_attempt is None:
            self._journal.append(NotRelaunched(election.refusal))
        else:
            info = election.next_attempt.context.info
            nodes = tuple(node.name for node in election.next_attempt.context.spec.nodes)
            self._journal.append(Relaunching(info.attempt, nodes, info.past_attempts[-1].reason))

    def next_start(self) -> Optional[SupervisorArgs]:
        """Write down the next attempt here, and return what to start; None where none follows.

        Raises:
            OSError: It cannot be written down.
        """
        args, election, context = self._args, self._election, self._args.election_context
        if election is None or election.next_attempt is None or context is None:
            return None
        orders, handover = election.next_attempt.orders, election.next_attempt.context
        order = orders.orders[args.order.node]
        info, plan = encode(handover.info), encode(orders.plan)
        record = {"info": info, "plan": plan, "config": handover.config_yaml}
        create_run_folder(args.folder, order, context.programs, record)
        return args._replace(
            order=order,
            reserved_ports=election.facts_child.reserved_ports,
            election_context=context._replace(handover=handover),
        )

    def close(self) -> None:
        """Leave nothing open."""
        if self._election is not None:
            self._election.close()
