"""Attempt on a host: the parameters of its supervisor, its votes, and its decision to relaunch.

The launch decides about a relaunch as long as it is there, else the hosts.
"""

from __future__ import annotations

import functools
from typing import Callable, Dict, NamedTuple, Optional

from runner.core.codec import encode
from runner.core.model.plan import Order
from runner.core.protocol.events import (
    FINAL_CAUSES,
    LIMIT_REASON,
    NotRelaunched,
    Relaunching,
    RelaunchPending,
    is_unattended,
)
from runner.core.protocol.paths import RunPaths
from runner.core.relaunch.handover import AttemptEnd
from runner.host.facts import ports
from runner.host.peers.election import ElectionContext, LeaderElection
from runner.host.process.event_loop import EventLoop
from runner.host.storage.run_folder import EventLog, create_run_folder


class SupervisorArgs(NamedTuple):
    """What a supervisor begins with."""

    folder: RunPaths
    order: Order
    environ: Dict[str, str]  # that of the order is added to it
    reserved_ports: ports.ReservedPorts
    token: bytes  # the secret that the supervisors of the run share
    election_context: Optional[ElectionContext] = None  # None: the hosts must not relaunch it
    write_down: Callable[[], object] = int  # makes the run folder; it may wait for a disk
    user_stopped: bool = False  # before it began


def join_election(args: SupervisorArgs, loop: EventLoop) -> Optional[LeaderElection]:
    """Return this supervisor's part in the election, None where the hosts cannot decide."""
    order, context = args.order, args.election_context
    if context is None or not order.voter_count:
        return None
    voter = args.reserved_ports.voter
    return LeaderElection(order, context, args.environ, voter, args.token, loop)


def may_relaunch(args: SupervisorArgs, end: AttemptEnd) -> bool:
    """Return whether another attempt may follow one that ended so, as far as this host knows."""
    context, hub = args.election_context, args.order.hub
    if context is None or end.cause in FINAL_CAUSES or not end.reason:
        return False
    if end.reason == LIMIT_REASON or is_unattended(end.reason):
        return False
    if hub is not None and hub.node != args.order.node and not end.joined_hub:
        return False
    return context.handover.spec.watch.relaunches or not end.is_stall


def hold_election(
    election: LeaderElection, end: AttemptEnd, journal: EventLog, poll: Callable[[], str]
) -> None:
    """Have the hosts decide after an attempt that ended so here.

    `poll` waits for a moment, and returns why to give up, "" for no reason.
    """
    journal.append(RelaunchPending())
    election.start(end)
    while not election.is_decided:
        abort_reason = poll()
        election.tick()
        if abort_reason:
            election.withdraw(abort_reason)
    if election.next_attempt is None:
        journal.append(NotRelaunched(election.refusal))
    else:
        info = election.next_attempt.context.info
        nodes = tuple(node.name for node in election.next_attempt.context.spec.nodes)
        journal.append(Relaunching(info.attempt, nodes, info.past_attempts[-1].reason))


def prepare_next(
    args: SupervisorArgs, election: LeaderElection, *, user_stopped: bool
) -> Optional[SupervisorArgs]:
    """Return what to start here, if another attempt follows, with what writes it down.

    `user_stopped`: one has stopped it since that was decided.
    """
    context = args.election_context
    if election.next_attempt is None or context is None:
        return None
    orders, handover = election.next_attempt.orders, election.next_attempt.context
    order = orders.orders[args.order.node]
    info, plan = encode(handover.info), encode(orders.plan)
    record = {"info": info, "plan": plan, "config": handover.config_yaml}
    return args._replace(
        order=order,
        write_down=functools.partial(
            create_run_folder, args.folder, order, context.programs, record
        ),
        user_stopped=user_stopped,
        reserved_ports=election.facts_child.reserved_ports,
        election_context=context._replace(handover=handover),
    )
