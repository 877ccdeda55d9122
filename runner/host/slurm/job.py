"""Job of a run, on its login node: how it stands and has ended, as Slurm says, and its end.

One question to the controller serves all runs of this process, for a while.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from typing import Generator, List, Optional, Tuple

from runner.core.model.slurm import UNKNOWN, JobStatus
from runner.core.protocol.paths import JobPaths
from runner.host.process import procfs
from runner.host.process.event_loop import pause
from runner.host.slurm import allocation, commands
from runner.host.slurm.job_folder import JobSettings, last_start_number, remove_secrets

FRESH_S = 2.0
"""How old an answer of the queue may be."""

CANCEL_MARGIN_S = 30.0
"""How much longer than its KillWait Slurm may take to end what a job has left."""

REFUSED_S = 5.0
"""How long a job may still be there that scancel refuses to end, since it ends by itself."""

POLL_S = 0.5
Jobs = Tuple[List[JobStatus], str]


class _Queue:
    """The last answer of squeue, for all threads of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answer: Jobs = ([], "")
        self._asked_at = float("-inf")

    def jobs(self, fresh_s: float) -> Generator[None, None, Jobs]:
        """Return this user's jobs in the queue, and why they are not known."""
        while not self._lock.acquire(blocking=False):  # another thread asks
            yield from pause(POLL_S / 10)
        try:
            if time.monotonic() - self._asked_at > fresh_s:
                self._answer = yield from commands.queued_jobs()
                self._asked_at = time.monotonic()
            return self._answer
        finally:
            self._lock.release()


_queue = _Queue()


def queued(fresh_s: float = FRESH_S) -> Generator[None, None, Jobs]:
    """Return this user's jobs in the queue, and why they are not known."""
    return (yield from _queue.jobs(fresh_s))


def status(paths: JobPaths, fresh_s: float = FRESH_S) -> Generator[None, None, JobStatus]:
    """Return how the job of a run stands, or its step in the allocation that it uses.

    One that Slurm has forgotten has state UNKNOWN, also if another one has its id by now: so it
    is where a controller lost its state, or has counted to MaxJobId (slurm.conf(5)).
    """
    jobs, problem = yield from queued(fresh_s)
    job_id, is_ours = procfs.read_text(paths.job_id).strip(), not JobSettings(paths).allocation
    found = next((each for each in jobs if each.job_id == job_id), None)
    is_queued = found is not None
    if found is None:
        found = JobStatus(job_id, problem=problem) if problem else (yield from commands.job(job_id))
    if is_ours and found.name not in ("", os.path.basename(paths.run)):
        return JobStatus(job_id, state=UNKNOWN)
    if is_queued:
        return found if is_ours else (yield from allocation.step_status(paths, found))
    states = (yield from commands.step_states(job_id)) if found.has_ended else []
    return replace(found, state=_telling_state([*states, found.state]))


TELLING_STATES = (
    *("OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "TIMEOUT", "DEADLINE", "PREEMPTED", "CANCELLED"),
)
"""The states of steps and jobs that say why one ended, the most telling first."""


def _telling_state(states: List[str]) -> str:
    """Return the state that says most: of a job out of memory, only a step says so."""
    return next((state for state in TELLING_STATES if state in states), states[-1])


def await_end(paths: JobPaths, limit_s: float) -> Generator[None, None, Optional[JobStatus]]:
    """Wait until a job is over, or is to start again; return None if it takes too long.

    One that is to start again is PENDING, even where Slurm still waits for a node that is lost.
    """
    deadline, number = time.monotonic() + limit_s, last_start_number(paths)
    is_requeued = JobSettings(paths).is_requeued
    while True:
        found = yield from status(paths, fresh_s=POLL_S / 2)
        if found.state == "COMPLETING" and is_requeued:
            count = yield from commands.restart_count(found.job_id)
            found = replace(found, state="PENDING") if count > number else found
        if found.has_ended or found.state == "PENDING":
            return found
        if time.monotonic() > deadline:
            return None
        yield from pause(POLL_S)


def cancel(paths: JobPaths) -> Generator[None, None, str]:
    """End a job, and wait until nothing of it is left; return what is wrong, "" if nothing is.

    Of an allocation only the step of the run is ended.
    """
    settings = JobSettings(paths)
    found = yield from status(paths, fresh_s=0.0)
    if found.problem:
        return f"Slurm does not answer: {found.problem}"
    if found.has_ended:
        remove_secrets(paths)
        return ""
    if settings.allocation:
        refusal = yield from allocation.cancel_step(paths, found.job_id)
    else:
        refusal = (yield from commands.run(["scancel", found.job_id])).problem
    limit_s = REFUSED_S if refusal else settings.kill_wait_s + CANCEL_MARGIN_S
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found = yield from status(paths, fresh_s=POLL_S / 2)
        if found.has_ended:
            remove_secrets(paths)
            return ""
        yield from pause(POLL_S)
    if refusal:
        return f"scancel: {refusal}"
    where = f" on {found.nodes}" if found.nodes else ""
    return f"job {found.job_id} is {found.state}: Slurm still ends it{where}"
