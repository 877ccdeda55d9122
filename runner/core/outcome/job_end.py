"""End of a job as Slurm tells it, added to what the hosts have seen of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterable, Sequence

from runner.core.model.results import Failure
from runner.core.model.slurm import ENDS
from runner.core.protocol.events import Event, JobEnded, TimedEvent, is_scheduled

REQUEUED = "its job is to start again"


def is_requeued(events: Iterable[Event]) -> bool:
    """Return whether the job waits to start the run again, after the last attempt of these."""
    known = list(events)
    last = max((event.attempt for event in known), default=0)
    ends = (event.body for event in known if event.attempt == last)
    return any(isinstance(body, JobEnded) and body.state == "PENDING" for body in ends)


def with_reason_of_job(failure: Failure, history: Sequence[TimedEvent]) -> Failure:
    """Return a failure with why Slurm ended the job, if it did.

    A rank that got KILL may have taken too much memory; a node that was lost may have failed.
    """
    ends = [timed.event.body for timed in history if isinstance(timed.event.body, JobEnded)]
    if not ends:
        return failure
    state = ends[-1].state
    why = REQUEUED if state == "PENDING" else ENDS.get(state, "")
    if not why or (failure.rank is not None and state != "OUT_OF_MEMORY"):
        return failure
    reason = failure.reason if is_scheduled(failure.reason) else f"{failure.reason} (Slurm"
    closing = "" if is_scheduled(failure.reason) else ")"
    return replace(failure, reason=f"{reason}: {why}{closing}")
