"""Completion of a job's record on its login node, where the supervisors could not do it."""

from __future__ import annotations

import os
from typing import Generator, Optional

from runner.core.model.plan import Order
from runner.core.model.slurm import ENDS, JobStatus
from runner.core.protocol.events import (
    ENDED_BY_SCHEDULER,
    Ended,
    JobEnded,
    RankExited,
    RanksSignalled,
    StopCause,
    Stopping,
    is_loss,
    is_scheduled,
)
from runner.core.protocol.paths import JobPaths, RunPaths
from runner.core.protocol.states import State
from runner.host.slurm import job
from runner.host.slurm.job_folder import JobSettings, last_start
from runner.host.storage.run_folder import EventLog, has_ended, read_events
from runner.host.supervisor.recovery import record_exits

END_LIMIT_S = 10.0
"""How much longer than its KillWait a job may take to end after its supervisors."""


def needs_reason(folder: RunPaths, order: Order) -> bool:
    """Return whether Slurm may know why an attempt ended that did so here, and it is not told."""
    bodies = [event.body for event in read_events(folder) if event.attempt == order.attempt]
    if any(isinstance(body, JobEnded) for body in bodies):
        return False
    is_limited = any(isinstance(body, RanksSignalled) for body in bodies)
    if is_limited and JobSettings(JobPaths(order.workdir, order.run_id)).is_requeued:
        return True
    return any(
        (isinstance(body, Stopping) and (is_scheduled(body.reason) or is_loss(body.reason)))
        or (isinstance(body, RankExited) and body.signal == 9)
        for body in bodies
    )


def is_ending(folder: RunPaths, order: Order) -> bool:
    """Return whether a supervisor has recorded that Slurm ends its job."""
    bodies = (event.body for event in read_events(folder) if event.attempt == order.attempt)
    return any(isinstance(body, Stopping) and is_scheduled(body.reason) for body in bodies)


def record_reason(folder: RunPaths, order: Order) -> Generator[None, None, None]:
    """Record what Slurm says of the end of an attempt."""
    paths = JobPaths(order.workdir, order.run_id)
    limit_s = JobSettings(paths).kill_wait_s + END_LIMIT_S
    found = yield from job.await_end(paths, limit_s)
    if found is None:
        return
    if found.has_ended:
        job.remove_secrets(paths)
    if _claim(paths, order, "reason"):
        _journal(folder, order).append(JobEnded(found.job_id, found.state))


def complete(folder: RunPaths, order: Order, found: JobStatus) -> None:
    """Complete the record of a node whose supervisor cannot: Slurm has ended the job."""
    paths = JobPaths(order.workdir, order.run_id)
    if has_ended(folder, order) or not _claim(paths, order, "completed"):
        return
    job.remove_secrets(paths)
    journal = _journal(folder, order)
    why = ENDS.get(found.state)
    reason = ENDED_BY_SCHEDULER if why else "its supervisor ended without a word"
    journal.append(Stopping(reason, StopCause.SCHEDULER if why else StopCause.DEATH))
    record_exits(folder, order, journal)
    journal.append(JobEnded(found.job_id, found.state))
    verified = JobSettings(paths).tracks_by_cgroup
    journal.finalise(Ended(State.FAILED, reason, verified=verified))


def _journal(folder: RunPaths, order: Order) -> EventLog:
    journal = EventLog(folder, order)
    journal.reopen()
    return journal


def _claim(paths: JobPaths, order: Order, purpose: str) -> bool:
    """Return whether it is for us to write: the first one alone makes this file."""
    path = os.path.join(last_start(paths).root, f"{order.node}.{purpose}-{order.attempt}")
    flags: int = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    descriptor: Optional[int] = None
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError:
        return False
    os.close(descriptor)
    return True
