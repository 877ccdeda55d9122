"""First failure: the event that a failed run is blamed on; all later ones are consequences."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import (
    NamedTuple,
)

from runner.core.outcome.membership import Membership
from runner.core.wire.events import (
    Ended,
    Event,
    HostLost,
    PeerDeparted,
    PeerLost,
    ProgramExited,
    ProgramStarted,
    RankExited,
    Stopping,
    StopRequested,
    TimedEvent,
)
from runner.core.wire.plan import Plan
from runner.core.wire.states import Reason, ReasonKind, State
from runner.core.wire.tracebacks import is_secondary_error

SAME_EVENT_S = 1.0
"""The death of a supervisor and what other hosts see of it are at most this far apart."""

OF_EVENTS = (ReasonKind.RANK, ReasonKind.PROGRAM)
"""Kinds of failures that are on record by themselves, beside the stop that followed."""


class NodeStop(NamedTuple):
    """The stop with which a node learned, in an attempt, that its processes are to end."""

    mono: float  # on the node's own clock
    reason: Reason


Stops = Mapping[tuple[str, int], NodeStop]
"""The first stop of each node in each attempt."""


@dataclass(frozen=True)
class TimedFailure:
    """A failure, and when it happened."""

    at: float  # when a rank that ended by itself had raised, else when it ended
    reason: Reason
    is_secondary: bool = False  # a rank only noticed that another one had gone

    @property
    def is_loss(self) -> bool:
        return self.reason.kind is ReasonKind.LOST


class UserStop(NamedTuple):
    """When a user asked for the end, by which signal, and who it was."""

    at: float
    signal: int
    reason: Reason


def find_failures(
    plan: Plan, history: Sequence[TimedEvent], last: Membership | None
) -> list[TimedFailure]:
    """Return the failures of an attempt, like its events in order of time.

    Where the first one to end followed from another, that other one comes before it.

    Failures of a node that was already stopping count only where there are no others, like ranks
    that torch ends because nodes departed; what a final stop ended is none. `last` is the last
    membership, where torch assigns the ranks.
    """
    events = [timed.event for timed in history]
    stops = node_stops(events)
    all_stops = node_stops(events, also_own=True)
    stopped_by_user = user_stop(history) is not None
    failures: list[TimedFailure] = []
    consequences: list[TimedFailure] = []
    causes: list[TimedFailure] = []
    departed: set[str] = set()
    for timed, failure in _reported(plan, history):
        event = timed.event
        _update_departed(departed, event)
        superseded = plan.restarts_ranks and _is_superseded(timed, last)
        if failure is None or event.node in departed or superseded:
            continue
        stop = stop_before(event, stops)
        got_term = isinstance(event.body, RankExited) and event.body.signal == signal.SIGTERM
        by_torch = plan.restarts_ranks and got_term
        if (by_torch and stopped_by_user) or (stop and stop.reason.is_final):
            continue
        is_late = stop is not None or (by_torch and departed)
        (consequences if is_late else failures).append(failure)
        cause = _own_failure(timed, failure, stop_before(event, all_stops))
        if cause:
            causes.append(cause)
    failures = failures or consequences
    root = _root_cause(failures[0], causes) if failures else None
    return [root, *failures] if root else failures


def departed_nodes(history: Iterable[TimedEvent]) -> set[str]:
    """Return the nodes that left the attempt and did not rejoin it."""
    departed: set[str] = set()
    for timed in history:
        _update_departed(departed, timed.event)
    return departed


def lost_nodes(plan: Plan, history: Sequence[TimedEvent]) -> dict[str, str]:
    """Return the nodes that were lost, each with the reason given by whoever noticed first."""
    lost: dict[str, str] = {}
    for _, found in _reported(plan, history):
        if found and found.is_loss:
            lost.setdefault(found.reason.node, found.reason.detail)
    return lost


def first_failure(
    failures: Sequence[TimedFailure],
    stop: UserStop | None,
    succeeded: bool,
) -> TimedFailure | None:
    """Return the failure that the others follow from; None if the user's stop came before any.

    What torchrun reports at the end of an attempt in which every rank succeeded is no failure. What
    a host itself reported when others lost it, as its supervisor died, is better than their word.
    """
    for timed in failures:
        if stop and timed.at >= stop.at:
            return None
        if timed.is_loss:
            for other in failures:
                is_own = other.reason.node == timed.reason.node and other.reason.rank is None
                if is_own and not other.is_loss and abs(other.at - timed.at) < SAME_EVENT_S:
                    return other
            return timed
        if not succeeded:
            return timed
    return None


def user_stop(history: Iterable[TimedEvent]) -> UserStop | None:
    """Return the stop that a user asked for, None if nobody did.

    A stop that was requested elsewhere counts as SIGINT. Where both are on record, ours has the
    signal, whichever clock says that it came first.
    """
    requested: list[UserStop] = []
    reported: list[UserStop] = []
    for timed in history:
        body = timed.event.body
        if isinstance(body, StopRequested) and body.signal:
            requested.append(UserStop(timed.at, body.signal, body.reason))
        elif isinstance(body, Stopping) and body.reason.is_by_user:
            reported.append(UserStop(timed.at, int(signal.SIGINT), body.reason))
    stops = requested + reported
    return stops[0]._replace(at=min(stops).at) if stops else None


def node_stops(history: Iterable[Event], *, also_own: bool = False) -> Stops:
    """Return the first stop of each node in each attempt that ends what has not failed.

    Its own failure is no such stop, unless it is TERM to all of its processes.
    """
    stops: dict[tuple[str, int], NodeStop] = {}
    for event in history:
        body = event.body
        if not isinstance(body, Stopping):
            continue
        is_failure = body.reason.is_own(event.node) and body.reason.kind is not ReasonKind.TERM
        if also_own or not is_failure:
            stops.setdefault((event.node, event.attempt), NodeStop(event.mono, body.reason))
    return stops


def stop_before(event: Event, stops: Stops) -> NodeStop | None:
    """Return the stop that a host was carrying out when a process of it ended, if any.

    The host's own clock decides: what is known of its offset may be wrong by more than the
    milliseconds between a stop and what ends by it.
    """
    stop = stops.get((event.node, event.attempt))
    is_end = isinstance(event.body, (RankExited, ProgramExited))
    return stop if is_end and stop is not None and event.mono >= stop.mono else None


def _update_departed(departed: set[str], event: Event) -> None:
    if isinstance(event.body, PeerDeparted):
        departed.add(event.body.peer)
    elif isinstance(event.body, ProgramStarted) and event.body.rejoin_count:
        departed.discard(event.node)


def _is_superseded(timed: TimedEvent, last: Membership | None) -> bool:
    """Return whether an event belongs to a membership that was followed by another one."""
    body = timed.event.body
    if last is None:
        return False
    if isinstance(body, RankExited):
        return not last.contains(timed.event.node, body.rank, body.start)
    if isinstance(body, (HostLost, PeerLost)):
        node = body.peer if isinstance(body, PeerLost) else timed.event.node
        return node not in last.nodes or timed.at + body.silence_s < last.started_at
    is_death = isinstance(body, Stopping) and is_death_of(timed.event.node, body)
    return (is_death or isinstance(body, Ended)) and timed.at < last.started_at


def _reported(
    plan: Plan, history: Sequence[TimedEvent]
) -> Iterator[tuple[TimedEvent, TimedFailure | None]]:
    """Yield every event with the failure that it reports, if any.

    A hub that each of several others lost was cut off, and what it says of them is no loss. Where
    it lived on to be stopped and was not, who lost it was cut off.
    """
    hub, *others = (node_plan.node for node_plan in plan.nodes)
    events = [timed.event for timed in history]
    losers = {e.node for e in events if isinstance(e.body, PeerLost) and e.body.peer == hub}
    hub_cut_off = len(others) > 1 and losers.issuperset(others)
    hub_stopped = any(node == hub for node, _ in node_stops(events))
    for timed in history:
        event = timed.event
        body = event.body
        if not isinstance(body, (HostLost, PeerLost)):
            yield timed, _failure(timed, plan.launcher)
        elif hub_cut_off and isinstance(body, PeerLost) and event.node == hub:
            yield timed, None
        else:
            node = body.peer if isinstance(body, PeerLost) else event.node
            detail = body.reason
            if node == hub and event.node != hub and hub_stopped and not hub_cut_off:
                node = event.node or hub
                detail = f"out of touch with {hub}: {detail}"
            yield timed, TimedFailure(timed.at, Reason(ReasonKind.LOST, node, detail=detail))


def _failure(timed: TimedEvent, launcher: str) -> TimedFailure | None:
    """Return the failure that an event other than a loss reports, if any."""
    event = timed.event
    body = event.body
    if isinstance(body, RankExited) and not body.succeeded:
        failed_by_itself = body.signal in (None, signal.SIGABRT)
        return TimedFailure(
            at=timed.at - body.raised_s if failed_by_itself else timed.at,
            reason=body.reason(event.node),
            is_secondary=body.signal != signal.SIGKILL and is_secondary_error(body.exception),
        )
    if isinstance(body, ProgramExited) and not body.succeeded:
        return TimedFailure(timed.at, body.reason(event.node, launcher))
    # Its supervisor stopped by itself (no controller), was stopped by Slurm, or died.
    if isinstance(body, Stopping) or (isinstance(body, Ended) and body.state is State.FAILED):
        reason = body.reason
        is_new = reason and reason.rank is None and reason.kind not in OF_EVENTS
        if reason and is_new and reason.is_own(event.node):
            return TimedFailure(timed.at, reason)
    return None


def is_death_of(node: str, body: Stopping) -> bool:
    """Return whether the supervisor of that node, which reports it, had died."""
    return body.reason.kind is ReasonKind.SUPERVISOR and body.reason.node == node


def _own_failure(
    timed: TimedEvent, failure: TimedFailure, stop: NodeStop | None
) -> TimedFailure | None:
    """Return the failure of a rank that did not only notice another's end; None for any other.

    A rank that was told to end, by a stop or by torch, had failed if it had raised before.
    """
    event = timed.event
    body = event.body
    if not isinstance(body, RankExited) or failure.is_secondary:
        return None
    if stop is None and body.signal != signal.SIGTERM:
        return failure
    if not body.exception or (stop is not None and event.mono - body.raised_s >= stop.mono):
        return None
    detail = f"raised {body.exception.splitlines()[0].partition(':')[0]}"
    reason = replace(body.reason(event.node), code=None, detail=detail)
    return TimedFailure(timed.at - body.raised_s, reason)


def _root_cause(first: TimedFailure, causes: Sequence[TimedFailure]) -> TimedFailure | None:
    """Return the failure that the first one to end follows from, if any.

    Python writes an exception down and then tears the process down; meanwhile ranks that follow
    may end first. Long before another's failure a rank may have handled what it wrote down.
    """
    if not first.is_secondary and first.reason.rank is None:
        return None
    earlier = [
        cause for cause in causes if first.is_secondary or 0 < first.at - cause.at < SAME_EVENT_S
    ]
    return min(earlier, key=lambda cause: cause.at, default=None)
