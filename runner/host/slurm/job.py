"""Job of a run, on its login node: how it stands and has ended, as Slurm says, and its end.

One question to the controller serves all runs of this process, for a while.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import replace
from typing import Generator, List, Optional, Tuple

from runner.core.model.slurm import UNKNOWN, JobStatus
from runner.core.protocol.paths import JobPaths
from runner.host.process import procfs
from runner.host.process.event_loop import pause
from runner.host.slurm import commands
from runner.host.slurm.job_folder import JobSettings, last_start, last_start_number
from runner.host.storage.run_folder import write_atomic

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
    if is_ours and found.name not in ("", _run_id(paths)):
        return JobStatus(job_id, state=UNKNOWN)
    if is_queued:
        return found if is_ours else (yield from _step_status(paths, found))
    states = (yield from commands.step_states(job_id)) if found.has_ended else []
    return replace(found, state=_telling_state([*states, found.state]))


def _step_status(paths: JobPaths, allocation: JobStatus) -> Generator[None, None, JobStatus]:
    """Return how a run stands in a job that has others, too: it is over once its step has ended.

    Before it has a step, its script may wait for those of others.
    """
    if _script_pid(paths):
        return allocation
    steps, problem = yield from commands.steps(allocation.job_id, _run_id(paths))
    if problem:
        return JobStatus(allocation.job_id, problem=problem)
    if steps:
        return allocation
    if os.path.exists(paths.cancelled):
        return replace(allocation, state="CANCELLED")
    start = last_start(paths)
    if procfs.read_text(paths.process) or procfs.read_text(start.step):
        return replace(allocation, state="COMPLETED")
    is_waiting = not procfs.read_text(start.nodes)
    waits = replace(allocation, state="PENDING", reason="earlier runs of its job")
    return waits if is_waiting else replace(allocation, state="RUNNING")


def _run_id(paths: JobPaths) -> str:
    return os.path.basename(paths.run)


def _script_pid(paths: JobPaths) -> int:
    """Return the process of a script that runs here, in an allocation; 0 for none."""
    pid, _, ticks = procfs.read_text(paths.process).partition(" ")
    is_alive = pid.isdigit() and procfs.start_ticks_of(int(pid)) == int(ticks or -1)
    return int(pid) if is_alive else 0


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
    refusal = yield from _end(paths, found.job_id, settings)
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


def _end(paths: JobPaths, job_id: str, settings: JobSettings) -> Generator[None, None, str]:
    """Tell Slurm to end a job, or the step of a run; return its refusal: it may have ended."""
    if not settings.allocation:
        return (yield from commands.run(["scancel", job_id])).problem
    write_atomic(paths.cancelled, "")  # no script starts a step, and no node the run, any more
    if pid := _script_pid(paths):
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        yield from pause(POLL_S)  # its srun may have asked for a step
    steps, problem = yield from commands.steps(job_id, _run_id(paths))
    for step in steps:
        problem = (yield from commands.run(["scancel", step])).problem or problem
    return problem


def remove_secrets(paths: JobPaths) -> None:
    """Remove the secrets of a job that is over; its script does so, unless it was killed."""
    with contextlib.suppress(OSError):
        os.unlink(paths.secrets)
