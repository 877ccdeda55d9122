"""Job of a run, on its login node: how it stands and has ended, as Slurm says, and its end.

One question to Slurm serves all runs, and nodes, of this process for a while.
"""

from __future__ import annotations

import functools
import threading
import time
from dataclasses import replace
from typing import Any, Callable, Dict, Generator, List, Optional, Tuple

from runner.core.model.slurm import SUBMITTING, UNKNOWN, JobStatus
from runner.core.protocol.paths import JobPaths
from runner.host.process import procfs
from runner.host.process.event_loop import pause
from runner.host.slurm import allocation, commands
from runner.host.slurm.job_folder import JobSettings, last_start, last_start_number, remove_secrets
from runner.host.storage.run_folder import mtime, write_atomic

FRESH_S = 2.0
"""How old an answer of the queue may be."""

CANCEL_MARGIN_S = 30.0
"""How much longer than its KillWait Slurm may take to end what a job has left."""

REFUSED_S = 5.0
"""How long a job may still be there that scancel refuses to end, since it ends by itself."""

SUBMITTING_S = commands.SUBMIT_LIMIT_S + 2 * commands.LIMIT_S
"""After what time a job whose id nobody has written down was submitted, or never will be."""

POLL_S = 0.5
Jobs = Tuple[List[JobStatus], str]


class _Answers:
    """The last answers of Slurm, for all threads of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: Dict[str, Tuple[float, Any]] = {}

    def get(
        self, key: str, fresh_s: float, ask: Callable[[], Generator[None, None, Any]]
    ) -> Generator[None, None, Any]:
        """Return the answer to a question, asked again unless it is fresh."""
        while not self._lock.acquire(blocking=False):  # another thread asks
            yield from pause(POLL_S / 10)
        try:
            asked_at, answer = self._known.get(key, (float("-inf"), None))
            if time.monotonic() - asked_at > fresh_s:
                answer = yield from ask()
                self._known[key] = time.monotonic(), answer
            return answer
        finally:
            self._lock.release()


_answers = _Answers()


def queued(
    fresh_s: float = FRESH_S, limit_s: float = commands.LIMIT_S
) -> Generator[None, None, Jobs]:
    """Return this user's jobs in the queue, and why they are not known."""
    ask = functools.partial(commands.queued_jobs, limit_s)
    jobs: Jobs = yield from _answers.get(f"queue within {limit_s} s", fresh_s, ask)
    return jobs


def status(paths: JobPaths, fresh_s: float = FRESH_S) -> Generator[None, None, JobStatus]:
    """Return how the job of a run stands, or its step in the job that it shares with others.

    One that Slurm has forgotten has state UNKNOWN, also if another one has its id by now: so it
    is where a controller lost its state, or has counted to MaxJobId (slurm.conf(5)).
    """
    jobs, problem = yield from queued(fresh_s)
    settings = JobSettings(paths)
    job_id = procfs.read_text(paths.job_id).strip()
    if not job_id.isdigit():
        if time.time() - mtime(paths.context) < SUBMITTING_S:  # who submits it may yet cancel it
            return JobStatus(state=SUBMITTING, problem=problem)
        job_id = _adopt(paths, settings.job_name, jobs)
    if not job_id:
        return JobStatus(problem=problem) if problem else JobStatus(state=UNKNOWN)
    found = next((each for each in jobs if each.job_id == job_id), None)
    is_queued = found is not None
    if found is None and problem:
        return JobStatus(job_id, problem=problem)
    if found is None:
        ask = functools.partial(commands.job, job_id)
        found = yield from _answers.get(f"job {job_id}", fresh_s, ask)
    if settings.job_name and found.name not in ("", settings.job_name):
        return JobStatus(job_id, state=UNKNOWN)
    if is_queued and settings.is_shared:
        found = yield from allocation.step_status(paths, found)
    if not found.has_ended or (is_queued and not settings.is_shared):
        return found
    return (yield from _end_of(paths, settings, found, fresh_s))


def _adopt(paths: JobPaths, name: str, jobs: List[JobStatus]) -> str:
    """Find a job by its name, and write down its id: who submitted it has died; "" for none."""
    job_id = next((each.job_id for each in jobs if name and each.name == name), "")
    if job_id:
        write_atomic(paths.job_id, job_id)
    return job_id


def _end_of(
    paths: JobPaths, settings: JobSettings, found: JobStatus, fresh_s: float
) -> Generator[None, None, JobStatus]:
    """Return how a job has ended, or the step of a run in it, as the accounting says, too."""
    step = procfs.read_text(last_start(paths).step).strip() if settings.is_shared else ""
    if settings.is_shared and not step:
        return found
    ask = functools.partial(commands.step_states, step or found.job_id)
    states = yield from _answers.get(f"steps {step or found.job_id}", fresh_s, ask)
    if step and states and "CANCELLED" not in states:  # so what ended its job did not end it
        return replace(found, state=_telling_state(states))
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
        is_out = found.state == "COMPLETING" or (found.has_ended and found.state != UNKNOWN)
        if is_out and is_requeued:  # it may be in no list before it is in the queue again
            ask = functools.partial(commands.restart_count, found.job_id)
            # Asked for all nodes at once, but after this state was seen.
            count = yield from _answers.get(f"starts {found.job_id} {found.state}", POLL_S / 2, ask)
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
    if found.state == SUBMITTING:
        return "its job is being submitted; try again in a minute"
    if found.has_ended:
        remove_secrets(paths, found)
        return ""
    write_atomic(paths.cancelled, "")  # no script starts a step, and no node the run, any more
    if settings.is_shared:
        refusal = yield from allocation.cancel_step(paths, found.job_id)
    else:
        refusal = (yield from commands.run(["scancel", found.job_id])).problem
    limit_s = REFUSED_S if refusal else settings.kill_wait_s + CANCEL_MARGIN_S
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found = yield from status(paths, fresh_s=POLL_S / 2)
        if found.has_ended:
            remove_secrets(paths, found)
            return ""
        yield from pause(POLL_S)
    if refusal:
        return f"scancel: {refusal}"
    where = f" on {found.nodes}" if found.nodes else ""
    return f"job {found.job_id} is {found.state}: Slurm still ends it{where}"
