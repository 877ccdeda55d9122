"""The job of a run on its login node: how it stands, and its end."""

from __future__ import annotations

import os
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.core.model.slurm import JobStatus
from runner.core.protocol.paths import JobPaths
from runner.host.process.event_loop import run_steps
from runner.host.slurm import commands, job, shared_files
from runner.host.slurm.commands import Answer

RUNNING = JobStatus("7", "RUNNING", nodes="n[1-2]", name="run-1")
ENDED = JobStatus("7", "FAILED")


class Slurm:
    """What Slurm says: the queue, a job that is not in it, its steps, and what was cancelled."""

    def __init__(self) -> None:
        self.queue: list[JobStatus] = []
        self.problem = ""
        self.gone = ENDED
        self.accounting: list[str] = []
        self.scancel = Answer(0, "", "")
        self.cancelled: list[str] = []
        self.ends_after = 0  # questions about the queue, once it is cancelled

    def queued_jobs(self, _: float) -> Generator[None, None, Any]:
        yield
        if self.cancelled:
            self.ends_after -= 1
            self.queue = self.queue if self.ends_after > 0 else []
        return self.queue, self.problem

    def job(self, job_id: str) -> Generator[None, None, JobStatus]:
        yield
        return replace(self.gone, job_id=job_id)

    def step_states(self, _: str) -> Generator[None, None, list[str]]:
        yield
        return self.accounting

    def run(self, argv: list[str]) -> Generator[None, None, Answer]:
        yield
        assert argv[0] == "scancel"
        self.cancelled += argv[1:]
        return self.scancel


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm()
    for name in ("queued_jobs", "job", "step_states", "run"):
        monkeypatch.setattr(commands, name, getattr(made, name))
    monkeypatch.setattr(job, "_answers", job._Answers())
    monkeypatch.setattr(job, "POLL_S", 0.002)
    return made


@pytest.fixture
def paths(tmp_path: Path) -> JobPaths:
    paths = JobPaths(str(tmp_path), "run-1")
    Path(paths.start(0).root).mkdir(parents=True)
    Path(paths.job_id).write_text("7\n")
    shared_files.write(paths.context, {"kill_wait_s": 0.0})
    return paths


def test_a_job_that_is_not_in_the_queue(slurm: Slurm, paths: JobPaths) -> None:
    """It is over, by the controller and the accounting; a queue that is not known says nothing."""
    slurm.accounting = ["CANCELLED", "OUT_OF_MEMORY", "COMPLETED"]
    assert run_steps(job.status(paths)) == replace(ENDED, state="OUT_OF_MEMORY")
    slurm.problem = "late"
    assert run_steps(job.status(paths, 0.0)) == JobStatus("7", problem="late")


@pytest.mark.parametrize("is_queued", [True, False])
def test_a_job_whose_id_was_given_again(slurm: Slurm, paths: JobPaths, is_queued: bool) -> None:
    """It is of another run, and is not cancelled in place of ours, which Slurm has lost."""
    slurm.gone = replace(RUNNING, name="run-2")
    slurm.queue = [slurm.gone] if is_queued else []
    assert run_steps(job.status(paths)) == JobStatus("7", "UNKNOWN")
    assert run_steps(job.cancel(paths)) == ""
    assert slurm.cancelled == []


def test_a_job_whose_id_nobody_wrote_down(slurm: Slurm, paths: JobPaths) -> None:
    """Who submitted it may still cancel it; if he died, its name tells."""
    Path(paths.job_id).unlink()
    slurm.queue = [RUNNING]
    assert run_steps(job.status(paths)).state == "SUBMITTING"
    assert "try again" in run_steps(job.cancel(paths))
    os.utime(paths.context, (1.0, 1.0))
    assert run_steps(job.status(paths, 0.0)) == RUNNING
    assert run_steps(job.cancel(paths)) == ""
    assert slurm.cancelled == ["7"]


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nobody wait long for what does not end."""
    monkeypatch.setattr(job, "CANCEL_MARGIN_S", 0.05)
    monkeypatch.setattr(job, "REFUSED_S", 0.05)


@pytest.mark.usefixtures("hurried")
def test_what_keeps_a_job_from_its_end(slurm: Slurm, paths: JobPaths) -> None:
    """Slurm does not answer, or refuses, or does not come to an end: none of it is a proof."""
    slurm.problem = "late"
    assert run_steps(job.cancel(paths)) == "Slurm does not answer: late"
    slurm.problem = ""
    slurm.queue = [RUNNING]
    slurm.ends_after = 10**6
    slurm.scancel = Answer(1, "", "scancel: error: Access denied")
    assert run_steps(job.cancel(paths)) == "scancel: scancel: error: Access denied"
    slurm.scancel = Answer(0, "", "")
    assert run_steps(job.cancel(paths)) == "job 7 is RUNNING: Slurm still ends it on n[1-2]"
