"""Sweep of jobs: the runs of a --multirun that Slurm schedules, several of them at once.

At most `sweep.parallel` jobs are in the queue; each is reported when it has ended. A detached sweep
submits all of them, each to start once the one that many before it has ended.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from runner.control.code.source import CodeSource
from runner.core.dataclass import dataclass
from runner.core.errors import SIGNAL_EXIT_BASE, Interrupted, NotReady
from runner.core.model.results import CANCELLED, NOT_STARTED, SUBMITTED, SweepRun
from runner.core.model.slurm import LOGIN
from runner.core.model.spec import LaunchRequest
from runner.core.shell import this_program
from runner.ui.output import show
from runner.workflows.attach import follow
from runner.workflows.history.compare import sweep_text
from runner.workflows.runs.discovery import RunFinder, open_run_finder
from runner.workflows.runs.found_run import FoundRun
from runner.workflows.slurm.queue import LoginLost, ask_login, asks_to_cancel, reconnect
from runner.workflows.slurm.submission import submit
from runner.workflows.sweep import STOPPING_CODES, commands_for, record_sweep, report_commands

POLL_S, MAX_POLL_S = 1.0, 15.0

Guard = Callable[[Callable[[], int]], int]
"""Does something, prints the error that it raises, and returns the exit code."""


@dataclass(frozen=True)
class Job:
    """A job that is in the queue, or runs."""

    index: int
    request: LaunchRequest
    submitted_at: float


def run_job_sweep(
    requests: Sequence[LaunchRequest], guard: Guard, source: Callable[[LaunchRequest], CodeSource]
) -> int:
    """Run a sweep; return the first exit code but 0. `source` is the code of a run."""
    return JobSweep(requests, guard, source).run()


class JobSweep:
    """The jobs of one sweep."""

    def __init__(
        self,
        requests: Sequence[LaunchRequest],
        guard: Guard,
        source: Callable[[LaunchRequest], CodeSource],
    ) -> None:
        self._requests, self._guard, self._source = requests, guard, source
        self._runs = [SweepRun(r.spec.run_id, r.sweep.changes if r.sweep else ()) for r in requests]
        self._job_ids: list[str] = []
        self._active: list[Job] = []
        self._parallel = requests[0].sweep_parallel
        self._one_job = requests[0].sweep_one_job
        self._states: dict[int, str] = {}  # of each job, as shown
        self._stopped_by = 0  # the exit code of a submission after which there is no other

    def run(self) -> int:
        """Return the first exit code but 0."""
        code = self._guard(self._run)
        show(sweep_text(self._requests, self._runs), file=sys.stderr)
        both = zip(self._requests, self._runs, strict=True)
        left = [each for each, run in both if run.exit_code is None and run.fate == NOT_STARTED]
        for command in commands_for(left):
            show(f"  {command}", file=sys.stderr)
        if any(run.fate == SUBMITTED for run in self._runs if run.exit_code is None):
            show(f"  {this_program()} ps {self._requests[0].selector}".rstrip(), file=sys.stderr)
        for command in report_commands(self._requests):
            show(f"  {command}", file=sys.stderr)
        codes = [run.exit_code for run in self._runs if run.exit_code]
        return self._stopped_by or code or (codes[0] if codes else 0)

    def _run(self) -> int:
        if self._requests[0].spec.detach and not self._one_job:
            self._submit_all()
            return 0
        first = replace_run(self._requests[0], "")
        with open_run_finder(first, "sweep", plain=True) as finder:
            try:
                if self._one_job:
                    self._submit_as_one(finder)
                if not self._requests[0].spec.detach:
                    self._run_all(finder)
            except Interrupted as error:
                self._on_interrupt(finder, error)
                return error.exit_code
        return 0

    def _submit_all(self) -> None:
        for index in range(len(self._requests)):
            if not self._stopped_by:
                self._submit(index)

    def _run_all(self, finder: RunFinder) -> None:
        upcoming = iter(() if self._one_job else range(len(self._requests)))
        while True:
            while len(self._active) < self._parallel and not self._stopped_by:
                index = next(upcoming, None)
                if index is None:
                    break
                self._submit(index)
            if self._stopped_by > SIGNAL_EXIT_BASE:
                raise Interrupted(self._stopped_by)
            if not self._active:
                return
            ended = [job for job in self._active if self._has_ended(finder, job)]
            for job in ended:
                if self._stopped_by <= SIGNAL_EXIT_BASE:
                    self._active.remove(job)
                    self._report(job)
            if not ended:
                age_s = time.monotonic() - max(job.submitted_at for job in self._active)
                finder.pool.poll_for_stop(min(MAX_POLL_S, max(POLL_S, age_s / 10)))

    def _submit(self, index: int) -> None:
        """Submit the job of a run."""
        request, number = self._requests[index], index + 1
        words = " ".join(self._runs[index].changes)
        show(f"run {number} of {len(self._requests)}: {words}", file=sys.stderr)
        waits_for = ""
        if request.spec.detach and index >= self._parallel:
            waits_for = self._job_ids[index - self._parallel]

        def take() -> int:
            source, hold = self._source(request), self._one_job
            done = submit(request, source, after=waits_for, hold=hold)
            self._job_ids.append(done.job_id)
            self._active.append(Job(index, done.request, time.monotonic()))
            self._runs[index] = replace(self._runs[index], fate=SUBMITTED)
            record_sweep(done.request, self._runs)
            return SIGNAL_EXIT_BASE + done.late_signal if done.late_signal else 0

        code = self._guard(take)
        if code in STOPPING_CODES:
            self._stopped_by = code
        if code:
            self._job_ids.append("")
        if 0 < code < SIGNAL_EXIT_BASE:
            self._end(index, code, 0.0)

    def _submit_as_one(self, finder: RunFinder) -> None:
        """Submit one job that has all runs, one after the other."""
        self._submit_all()
        if self._stopped_by > SIGNAL_EXIT_BASE:
            raise Interrupted(self._stopped_by)
        held = [job.request.spec.run_id for job in self._active]
        answer = ask_login(finder.pool, LOGIN, "submit_held", {"run_ids": held}, "submitted")
        show(f"all of them: submitted as job {answer['job_id']}", file=sys.stderr)

    def _has_ended(self, finder: RunFinder, job: Job) -> bool:
        data = {"run_id": job.request.spec.run_id}
        try:
            status = ask_login(finder.pool, LOGIN, "job", data, "job")["status"]
        except LoginLost as error:
            reconnect(finder.pool, error)
            return False
        if status.state != self._states.get(job.index) and not status.has_ended:
            self._states[job.index] = status.state
            show(f"run {job.index + 1} of {len(self._requests)}: {status.text}", file=sys.stderr)
        return bool(status.has_ended)

    def _report(self, job: Job) -> None:
        """Show a run that has ended, and record its result."""
        words = " ".join(self._runs[job.index].changes)
        show(f"run {job.index + 1} of {len(self._requests)}: {words}", file=sys.stderr)

        def take() -> int:
            with open_run_finder(job.request, "sweep") as finder:
                return follow(FoundRun(job.request, finder))

        code = self._guard(take)
        self._end(job.index, code, time.monotonic() - job.submitted_at)
        if code in STOPPING_CODES:
            self._stopped_by = code

    def _end(self, index: int, code: int, seconds: float) -> None:
        self._runs[index] = replace(self._runs[index], exit_code=code, seconds=round(seconds, 3))
        record_sweep(self._requests[index], self._runs)

    def _on_interrupt(self, finder: RunFinder, error: Interrupted) -> None:
        """Cancel the jobs, or leave them where the user wants that."""
        words = {"what": f"the jobs of this sweep ({len(self._active)} on)", "it": "them"}
        cancels = bool(self._active) and asks_to_cancel(finder.pool, error, words)
        for job in [*self._active] if cancels else ():
            data = {"run_id": job.request.spec.run_id}
            try:
                answer = ask_login(finder.pool, LOGIN, "cancel_job", data, "job_cancelled")
            except NotReady as problem:
                show(str(problem), file=sys.stderr)
                continue
            self._active.remove(job)
            if answer["has_begun"]:
                self._report(job)
            else:
                self._runs[job.index] = replace(self._runs[job.index], fate=CANCELLED)
        for job in self._active:
            flags = job.request.run_flags(job.request.spec.run_id)
            commands = (f"{this_program()} {verb} {flags}" for verb in ("attach", "stop"))
            lines = [f"run {job.request.spec.run_id}: its job goes on", *commands]
            show("\n  ".join(lines), file=sys.stderr)


def replace_run(request: LaunchRequest, run_id: str) -> LaunchRequest:
    """Return a request about another run of the same cluster, or about none."""
    return replace(request, spec=replace(request.spec, run_id=run_id))
