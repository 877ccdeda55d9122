"""Attempt on a host: what its supervisor begins with, and what follows it.

A launch that is there decides about a relaunch, else the hub: once nothing of the attempt is left,
it gives the nodes that are left and stand by other numbers. The others do as it says.
"""

from __future__ import annotations

import contextlib
import signal
import time
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Union

from runner.core.wire.codec import decode, encode
from runner.core.wire.events import Detached, Ended, NotRelaunched, Relaunching, RelaunchPending
from runner.core.wire.notification import Teller
from runner.core.wire.order import Notify, Order
from runner.core.wire.paths import RunPaths
from runner.core.wire.plan import Plan, next_attempt, plan_of, renumbered, run_info
from runner.core.wire.run_info import PastAttempt, RunInfo
from runner.core.wire.states import FAILED_CODE, STUCK, STUCK_CODE, Reason, ReasonKind, State
from runner.core.wire.timing import (
    ENGINE_TIMEOUT_S,
    KILL_TIMEOUT_S,
    NOTIFICATION_TIMEOUT_S,
    FailureDetector,
)
from runner.host.facts import ports
from runner.host.peers.fold import HubFold, LastHeard, MemberFold, PeerState, Phase, Upcoming
from runner.host.peers.group import PeerGroup
from runner.host.process import procfs
from runner.host.process.bounded_child import BoundedChild
from runner.host.storage.run_folder import EventLog
from runner.host.supervisor.stop_ladder import StopLadder

UNATTENDED_S = 10.0  # agents renew the lease of a controller more often
LAUNCH_GONE_S = 30.0  # of silence, after which the hub decides in the place of a launch
NOTIFICATION_MARGIN_S = 5.0  # to end a command that does not
PROOF_MARGIN_S = 10.0  # beyond the grace, for what a host that answers has left to end


class SupervisorArgs(NamedTuple):
    folder: RunPaths
    order: Order
    environ: Dict[str, str]  # that of the order is added to it
    reserved_ports: ports.ReservedPorts
    token: bytes  # the secret that the supervisors of the run share
    record: Mapping[str, Any] = {}  # of the whole run; see `create_run_folder`, as for `programs`
    programs: Mapping[str, str] = {}
    upcoming: Optional[Upcoming] = None  # the hub's decision by which this attempt began
    user_stopped: bool = False  # before it began

    @property
    def orders(self) -> Dict[str, Order]:
        """Those of the attempt in rank order, then those of its spares, as on record."""
        plan = decode(Plan, self.record["plan"])
        known = {share.node: share.order for share in (*plan.nodes, *plan.spares)}
        return {**known, self.order.node: self.order}  # which knows the hub by its number


class ControllerLease:
    """When controllers were heard, by which the hosts know what is up to them.

    With `disconnect_s` an attempt stops that time after the last controller, unless it was
    detached. Whoever launched it decides about a relaunch and tells of the end. Once it was
    detached the hosts do; else when that launch has been silent for `LAUNCH_GONE_S`, and they tell
    after `UNATTENDED_S`.

    Attributes:
        wants_detach: Whether a controller wanted that here, and the hub has not confirmed it.
        heard: When agents on this host renewed the lease.
        heard_anywhere: When agents did on any host.
    """

    def __init__(self, order: Order, journal: EventLog) -> None:
        self._order = order
        self._journal = journal
        self._pauses = FailureDetector()
        self.detached = order.detached
        self.wants_detach = False
        now = time.monotonic()
        self.heard = LastHeard(now, now)
        self.heard_anywhere = self.heard

    def renew(self, *, by_launch: bool = False) -> None:
        now = time.monotonic()
        self.heard = LastHeard(now, now if by_launch else self.heard.launch)
        self.heard_anywhere = self.heard_anywhere.merged(self.heard)

    def take(self, state: PeerState, *, is_stopping: bool) -> None:
        """Take what another host says; the hub detaches only before it stops."""
        now = time.monotonic()
        heard = LastHeard(now - state.controller_age_s, now - state.launch_age_s)
        self.heard_anywhere = self.heard_anywhere.merged(heard)
        if state.detached and not (is_stopping and self._is_hub):
            self.detach()

    @property
    def heard_to_tell(self) -> LastHeard:
        """What the others are told: nobody hears from the hub what it has said itself."""
        return self.heard_anywhere if self._is_hub else self.heard

    @property
    def hosts_decide(self) -> bool:
        """Whether a relaunch is up to the hosts: no launch is there."""
        return self.detached or time.monotonic() - self.heard_anywhere.launch > LAUNCH_GONE_S

    @property
    def is_unattended(self) -> bool:
        """Whether notifications are up to the hosts."""
        return self.detached or time.monotonic() - self.heard_anywhere.launch > UNATTENDED_S

    def expiry(self) -> Optional[Reason]:
        """Return why to stop for want of a controller, if so; not right after a pause of our own.

        To be called often: see `FailureDetector`.
        """
        limit_s = self._order.disconnect_s
        now = time.monotonic()
        is_over = limit_s > 0 and now - self.heard_anywhere.controller > limit_s
        if self._pauses.check(now) and is_over and not self.detached:
            return Reason(ReasonKind.UNATTENDED, self._order.node, detail=f"{limit_s:g} s")
        return None

    @property
    def _is_hub(self) -> bool:
        hub = self._order.hub
        return hub is None or hub.node == self._order.node

    def detach(self) -> None:
        self.wants_detach = False
        if not self.detached:
            self.detached = True
            if not self._journal.state.is_terminal:  # a record ends with its end
                self._journal.append(Detached())


class Decision:
    """The wait for what follows an attempt, which has ended here with proof.

    `poll` waits for a moment, and returns why to wait no longer, "" for no reason.
    """

    def __init__(
        self,
        args: SupervisorArgs,
        ladder: StopLadder,
        group: PeerGroup,
        lease: ControllerLease,
        journal: EventLog,
        poll: Callable[[], str],
    ) -> None:
        self._args = args
        self._order = args.order
        self._ladder = ladder
        self._group = group
        self._lease = lease
        self._journal = journal
        self._poll = poll
        self._is_pending = False

    def wait(self, began_at: float) -> Optional[Upcoming]:
        reason = self._ladder.reason
        if reason is None or not self._may_follow(reason):
            return None
        if isinstance(self._group.fold, MemberFold):
            decided = self._obey(self._group.fold)
        else:
            decided = self._decide(reason, began_at)
            self._group.decide(decided)
        if isinstance(decided, Upcoming):
            past = decided.past
            self._journal.append(Relaunching(decided.attempt, decided.nodes, past.reason))
            return decided
        if self._is_pending:
            self._journal.append(NotRelaunched(decided))
        return None

    def _may_follow(self, reason: Reason) -> bool:
        order = self._order
        is_wanted = reason.is_final or reason.kind is ReasonKind.UNATTENDED
        if is_wanted or not order.relaunches_left:
            return False
        if reason.kind is ReasonKind.STALL and not order.relaunches_stalls:
            return False
        fold = self._group.fold
        if isinstance(fold, MemberFold):
            return fold.hub_state is not None
        return fold is not None or order.hub is None  # else nobody could be told

    def _launch_is_gone(self) -> Optional[bool]:
        """Return whether the hosts decide, None while that is not known.

        A launch that is there is heard again after the stop.
        """
        if self._lease.hosts_decide:
            return True
        is_heard = self._lease.heard_anywhere.launch >= self._ladder.stopped_at
        return False if is_heard else None

    def _pend(self) -> None:
        if not self._is_pending:
            self._is_pending = True
            self._journal.append(RelaunchPending())

    def _obey(self, fold: MemberFold) -> Union[Upcoming, str]:
        """Wait for the decision of the hub; return that, or why there is none."""
        self._group.pend()
        while fold.upcoming is None:
            problem = self._poll()
            hub_state = fold.hub_state
            phase = hub_state.phase if hub_state is not None else Phase.ENDED
            if phase is Phase.PENDING:
                self._pend()
            if hub_state is not None and phase is Phase.ENDED:
                problem = problem or hub_state.refusal or "its hub has ended"
            elif fold.hub_finished and self._launch_is_gone() is not None:
                if self._launch_is_gone():
                    self._pend()  # else there is a launch that decides, and it need not be said
                problem = "its hub, which would decide about it, was lost"
            if problem and fold.upcoming is None:
                return problem
        upcoming = fold.upcoming
        if self._order.node in (*upcoming.nodes, *upcoming.spares):
            return upcoming
        return "the run goes on without this node"

    def _decide(self, reason: Reason, began_at: float) -> Union[Upcoming, str]:
        """Return, on the hub, the next attempt, once nothing can be left of this one."""
        problem = self._wait_while(lambda: self._launch_is_gone() is None)
        if problem or not self._launch_is_gone():
            return problem
        self._pend()
        self._group.pend()
        fold = self._group.fold
        hub_fold = fold if isinstance(fold, HubFold) else None
        problem = self._wait_for_proof(hub_fold) if hub_fold is not None else ""
        relaunch_at = time.monotonic() + self._order.relaunch_pause_s
        problem = problem or self._wait_while(lambda: time.monotonic() < relaunch_at)
        return problem or self._choose(hub_fold, reason, began_at)

    def _wait_while(self, condition: Callable[[], bool]) -> str:
        """Return why to wait no longer, "" once the condition does not hold."""
        while condition():
            if problem := self._poll():
                return problem
        return ""

    def _wait_for_proof(self, fold: HubFold) -> str:
        """Wait until nothing of the attempt can be left; return why to wait for nothing more.

        Who answers and does not prove its end in time takes no part.
        """
        order = self._order
        lost_s = order.hub.lost_s if order.hub is not None else 0.0
        patience_s = lost_s + order.grace_s + KILL_TIMEOUT_S
        engine_s = ENGINE_TIMEOUT_S if order.container is not None else 0.0
        give_up_at = time.monotonic() + patience_s + engine_s + PROOF_MARGIN_S

        def is_one_unproven() -> bool:
            now = time.monotonic()
            return now < give_up_at and fold.is_one_unproven(now, patience_s)

        return self._wait_while(is_one_unproven)

    def _choose(
        self, fold: Optional[HubFold], reason: Reason, began_at: float
    ) -> Union[Upcoming, str]:
        order = self._order
        orders = self._args.orders
        proven = [order.node]
        suspected = ""
        if fold is not None:
            for name in orders:
                if not (orders[name].is_standby or name == order.node or fold.knows(name)):
                    return f"{name} never reached {order.node}, so that its end is not known"
            proven += [name for name in fold.proven if name in orders]
            suspected = fold.first_to_stop
        is_watched = fold is not None or order.disconnect_s > 0  # by a launch that may lose us
        if len(orders) > 1 and len(proven) == 1 and is_watched and not self._lease.detached:
            return "no other node answers, and a launch may relaunch it there"
        lost = {name for name in orders if name not in proven}
        standing_by = [name for name in proven if orders[name].is_standby]
        if reason.kind is ReasonKind.STALL:
            suspected = ""
        made = next_attempt(orders, lost, standing_by, suspected)
        if isinstance(made, str):
            return made
        nodes = tuple(name for name in orders if not orders[name].is_standby)
        unverified = tuple(name for name in nodes if name in lost)
        seconds = time.monotonic() - began_at
        return Upcoming(
            order.attempt + 1,
            nodes=tuple(name for name in made if not made[name].is_standby),
            spares=tuple(name for name in made if made[name].is_standby),
            past=PastAttempt(order.attempt, nodes, reason, seconds, unverified),
        )


def begin_next(args: SupervisorArgs, upcoming: Upcoming, *, user_stopped: bool) -> SupervisorArgs:
    """Return what to start here as the attempt that follows.

    `user_stopped`: one has stopped it since that was decided.
    """
    orders = renumbered(args.orders, upcoming.nodes, upcoming.spares)
    order = orders[args.order.node]
    is_master = not (order.node_rank or order.is_standby)
    info = decode(RunInfo, args.record["info"])
    plan = plan_of(decode(Plan, args.record["plan"]), orders)
    past = (*info.past_attempts, upcoming.past)
    info = run_info(plan, info.launched_by, info.launched_at, past)
    record = {**args.record, "info": encode(info), "plan": encode(plan)}
    return args._replace(
        order=order,
        record=record,
        upcoming=upcoming,
        user_stopped=user_stopped,
        reserved_ports=args.reserved_ports.next_store(order.master_port if is_master else 0),
    )


def tell_end(
    args: SupervisorArgs, notify: Notify, end: Ended, ladder: StopLadder, seconds: float
) -> None:
    """Run the commands that tell of the end of the run, as far as this host knows it.

    The process that does so records by itself what could not be told: nothing waits for it, and it
    may outlive the supervisor, by no more than its own deadline.
    """
    reason = ladder.reason or end.reason
    state = end.state.value
    code = 0 if end.state is State.SUCCEEDED else FAILED_CODE
    if end.state is State.STUCK or not end.verified:
        state = STUCK
        code = STUCK_CODE
    elif ladder.user_stopped:
        state, code = Reason(ReasonKind.USER).outcome
    elif reason is not None:
        state, code = reason.outcome
    folder = args.folder
    teller = Teller(args.order, notify, args.environ, cwd=folder.root, name=args.order.node)
    message = teller.message(state, code, seconds, reason)

    def send() -> None:
        procfs.close_fds_except({0, 1, 2})  # such as the lock of the run
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a command need not read its input
        if failed := teller.deliver(message):
            journal = EventLog(folder, args.order)
            for failure in failed:
                journal.append(failure)

    with contextlib.suppress(OSError):  # there can be no more processes
        BoundedChild(send, NOTIFICATION_TIMEOUT_S + NOTIFICATION_MARGIN_S)
