"""Completion of a job's record on its login node, where the supervisors could not do it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Generator, Iterator

from runner.core.model.plan import Order
from runner.core.model.slurm import ENDS, JobStatus
from runner.core.protocol.events import (
    ENDED_BY_SCHEDULER,
    Ended,
    JobEnded,
    PeerLost,
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
from runner.host.slurm.job_folder import JobSettings, is_first, last_start, remove_secrets
from runner.host.storage.run_folder import EventLog, has_ended, mtime, read_events
from runner.host.supervisor.recovery import record_exits

END_LIMIT_S = 10.0
"""How much longer than its KillWait a job may take to end after its supervisors."""

CLAIM_S = 60.0
"""After what time a claim to write a record counts as given up."""


def needs_reason(folder: RunPaths, order: Order) -> bool:
    """Return whether Slurm may know why an attempt ended that did so here, and it is not told.

    The first node that is left asks, for all.
    """
    bodies = [event.body for event in read_events(folder) if event.attempt == order.attempt]
    lost = {body.peer for body in bodies if isinstance(body, PeerLost)}
    is_told = any(isinstance(body, JobEnded) for body in bodies)
    if is_told or not is_first(JobPaths(order.workdir, order.run_id), order.node, lost):
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
    remove_secrets(paths, found)
    with _claim(paths, order, "reason") as is_ours:
        if is_ours:
            _journal(folder, order).append(JobEnded(found.job_id, found.state))


def complete(folder: RunPaths, order: Order, found: JobStatus) -> None:
    """Complete the record of a node whose supervisor cannot: Slurm has ended the job.

    It may have done so to start it again: `found` is PENDING then.
    """
    paths = JobPaths(order.workdir, order.run_id)
    remove_secrets(paths, found)
    with _claim(paths, order, "completed") as is_ours:
        if is_ours and not has_ended(folder, order):
            _complete(folder, order, found)


def _complete(folder: RunPaths, order: Order, found: JobStatus) -> None:
    journal = _journal(folder, order)
    is_known = found.state in ENDS or found.state == "PENDING"
    reason = ENDED_BY_SCHEDULER if is_known else "its supervisor ended without a word"
    journal.append(Stopping(reason, StopCause.SCHEDULER if is_known else StopCause.DEATH))
    record_exits(folder, order, journal)
    journal.append(JobEnded(found.job_id, found.state))
    verified = JobSettings(JobPaths(order.workdir, order.run_id)).tracks_by_cgroup
    journal.finalise(Ended(State.FAILED, reason, verified=verified))


def _journal(folder: RunPaths, order: Order) -> EventLog:
    journal = EventLog(folder, order)
    journal.reopen()
    return journal


@contextlib.contextmanager
def _claim(paths: JobPaths, order: Order, purpose: str) -> Iterator[bool]:
    """Tell whether it is for us to write, who have made this file; we remove it if we fail.

    A claim is void once it is old: who made it has died.
    """
    path = os.path.join(last_start(paths).root, f"{order.node}.{purpose}-{order.attempt}")
    if time.time() - mtime(path) > CLAIM_S:
        with contextlib.suppress(OSError):
            os.unlink(path)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        yield False
        return
    try:
        yield True
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
