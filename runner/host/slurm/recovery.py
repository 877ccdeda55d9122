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
    RankExited,
    RanksSignalled,
    StopCause,
    Stopping,
    is_loss,
    is_scheduled,
)
from runner.core.protocol.paths import JobPaths, RunPaths
from runner.core.protocol.states import State
from runner.host.process import procfs
from runner.host.slurm import job
from runner.host.slurm.job_folder import JobSettings, remove_secrets
from runner.host.storage.run_folder import EventLog, has_ended, mtime, read_events
from runner.host.supervisor.recovery import record_exits

END_LIMIT_S = 10.0
"""How much longer than its KillWait a job may take to end after its supervisors."""

CLAIM_S = 60.0
"""After what time a claim to write a record counts as given up."""

REASON = "reason"
DONE = "done"
"""What a claim holds once the record is written."""


def needs_reason(folder: RunPaths, order: Order) -> bool:
    """Return whether Slurm may know why an attempt ended that did so here, and is not asked yet.

    Any node may be the one that has seen it: of another, Slurm's TERM may have ended the rank
    before it came to the supervisor.
    """
    paths = JobPaths(order.workdir, order.run_id)
    if procfs.read_text(_claim_file(paths, order, REASON)) == DONE:
        return False
    bodies = [event.body for event in read_events(folder) if event.attempt == order.attempt]
    if any(isinstance(body, JobEnded) for body in bodies):
        return False
    is_limited = any(isinstance(body, RanksSignalled) for body in bodies)
    if is_limited and JobSettings(paths).is_requeued:
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
    """Record what Slurm says of the end of an attempt, once for all nodes."""
    paths = JobPaths(order.workdir, order.run_id)
    if not needs_reason(folder, order):  # another node has asked meanwhile
        return
    limit_s = JobSettings(paths).kill_wait_s + END_LIMIT_S
    found = yield from job.await_end(paths, limit_s)
    if found is None:
        return
    remove_secrets(paths, found)
    with _claim(_claim_file(paths, order, REASON)) as is_ours:
        if is_ours:
            _journal(folder, order).append(JobEnded(found.job_id, found.state))


def complete(folder: RunPaths, order: Order, found: JobStatus) -> None:
    """Complete the record of a node whose supervisor cannot: Slurm has ended the job.

    It may have done so to start it again: `found` is PENDING then.
    """
    paths = JobPaths(order.workdir, order.run_id)
    remove_secrets(paths, found)
    with _claim(_claim_file(paths, order, f"{order.node}.completed")) as is_ours:
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


def _claim_file(paths: JobPaths, order: Order, purpose: str) -> str:
    return os.path.join(paths.root, f"{purpose}-{order.attempt}")


@contextlib.contextmanager
def _claim(path: str) -> Iterator[bool]:
    """Tell whether it is for us to write, who have made this file; we remove it if we fail.

    A claim is void once it is old and nothing was done: who made it has died.
    """
    if procfs.read_text(path) != DONE and time.time() - mtime(path) > CLAIM_S:
        with contextlib.suppress(OSError):
            os.unlink(path)
    try:
        claim = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        yield False
        return
    try:
        yield True
        os.write(claim, DONE.encode())
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(claim)
