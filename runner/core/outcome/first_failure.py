"""First failure: the one that a failed run is blamed on; all later ones are consequences."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.core.outcome.attempt_events import AttemptEvents, stop_before
from runner.core.wire.events import (
    Ended,
    HostLost,
    PeerDeparted,
    PeerLost,
    ProgramExited,
    ProgramStarted,
    RankExited,
    Stopping,
    TimedEvent,
)
from runner.core.wire.states import Reason, ReasonKind, State
from runner.core.wire.tracebacks import is_secondary_error

SAME_EVENT_S = 1.0
"""The death of a supervisor and what other hosts see of it are at most this far apart."""

OF_EVENTS = (ReasonKind.RANK, ReasonKind.PROGRAM)
"""Kinds of failures that are on record by themselves, beside the stop that followed."""


@dataclass(frozen=True)
class TimedFailure:
    at: float  # when a rank that ended by itself had raised, else when it ended
    reason: Reason
    is_secondary: bool = False  # a rank only noticed that another one had gone

    @property
    def is_loss(self) -> bool:
        return self.reason.kind is ReasonKind.LOST


def first_failure(events: AttemptEvents, *, all_succeeded: bool) -> Reason | None:
    """Return the failure that the others follow from; None if the user's stop came before any.

    What torchrun reports at the end of an attempt in which every rank succeeded is no failure.
    What a host itself reported when others lost it, as its supervisor died, is better than
    their word.
    """
    if events.is_decided or (all_succeeded and events.plan.restarts_ranks):
        return None
    failures = _find_failures(events)
    stop = events.user_stop
    for timed in failures:
        if stop and timed.at >= stop.at:
            return None
        if timed.is_loss:
            for other in failures:
                is_own = other.reason.node == timed.reason.node and other.reason.rank is None
                if is_own and not other.is_loss and abs(other.at - timed.at) < SAME_EVENT_S:
                    return other.reason
            return timed.reason
        if not all_succeeded:
            return timed.reason
    return None


def _find_failures(events: AttemptEvents) -> list[TimedFailure]:
    """Return the failures, like the events in order of time.

    Where the first one to end followed from another, that other one comes before it.

    Failures of a node that was already stopping count only where there are no others, like
    ranks that torch ends because nodes departed; what a final stop ended is none.
    """
    failures: list[TimedFailure] = []
    consequences: list[TimedFailure] = []
    causes: list[TimedFailure] = []
    departed: set[str] = set()
    restarts_ranks = events.plan.restarts_ranks
    for timed in events.timed:
        event = timed.event
        body = event.body
        if isinstance(body, PeerDeparted):
            departed.add(body.peer)
        elif isinstance(body, ProgramStarted) and body.rejoin_count:
            departed.discard(event.node)
        loss = events.loss(timed)
        failure = TimedFailure(timed.at, loss) if loss else _failure(timed, events.plan.launcher)
        superseded = restarts_ranks and _is_superseded(events, timed)
        if failure is None or event.node in departed or superseded:
            continue
        stop = stop_before(event, events.stops)
        got_term = isinstance(body, RankExited) and body.signal == signal.SIGTERM
        by_torch = restarts_ranks and got_term
        if (by_torch and events.user_stop) or (stop and stop.reason.is_final):
            continue
        is_late = stop is not None or (by_torch and departed)
        (consequences if is_late else failures).append(failure)
        if cause := _own_failure(events, timed, failure):
            causes.append(cause)
    failures = failures or consequences
    root = _root_cause(failures[0], causes) if failures else None
    return [root, *failures] if root else failures


def _is_superseded(events: AttemptEvents, timed: TimedEvent) -> bool:
    """Return whether an event belongs to a membership that was followed by another one."""
    last = events.memberships.last
    name = timed.event.node
    body = timed.event.body
    if last is None:
        return False
    if isinstance(body, RankExited):
        return not last.contains(name, body.rank, body.start)
    if isinstance(body, (HostLost, PeerLost)):
        node = body.peer if isinstance(body, PeerLost) else name
        return node not in last.nodes or timed.at + body.silence_s < last.started_at
    is_death = isinstance(body, Stopping) and is_death_of(name, body)
    return (is_death or isinstance(body, Ended)) and timed.at < last.started_at


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
    events: AttemptEvents, timed: TimedEvent, failure: TimedFailure
) -> TimedFailure | None:
    """Return the failure of a rank that did not only notice another's end; None for any other.

    A rank that was told to end, by a stop or by torch, had failed if it had raised before.
    """
    event = timed.event
    body = event.body
    if not isinstance(body, RankExited) or failure.is_secondary:
        return None
    stop = stop_before(event, events.stops, also_own=True)
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
