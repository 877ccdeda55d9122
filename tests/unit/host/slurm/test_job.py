"""The job of a run on its login node: how it stands, and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.core.model.slurm import JobStatus
from runner.core.protocol.paths import JobPaths
from runner.host.process import procfs
from runner.host.process.event_loop import run_steps
from runner.host.slurm import allocation as allocation_of_user
from runner.host.slurm import commands, job, shared_files
from runner.host.slurm.commands import Answer
from runner.host.slurm.job_folder import JobSettings, last_start
from runner.host.slurm.job_folder import job_paths as paths_of

RUNNING = JobStatus("7", "RUNNING", nodes="n[1-2]", name="run-1")
ENDED = JobStatus("7", "FAILED")


class Slurm:
    """What Slurm says: the queue, a job that is not in it, its steps, and what was cancelled."""

    def __init__(self) -> None:
        self.queue: list[JobStatus] = []
        self.problem = ""
        self.gone = ENDED
        self.accounting: list[str] = []
        self.steps: tuple[list[str], str] = ([], "")
        self.scancel = Answer(0, "", "")
        self.cancelled: list[str] = []
        self.asked_accounting: list[str] = []
        self.questions = 0
        self.ends_after = 0  # questions about the queue, once it is cancelled

    def queued_jobs(self) -> Generator[None, None, Any]:
        """Answer squeue."""
        yield
        self.questions += 1
        if self.cancelled:
            self.ends_after -= 1
            self.queue = self.queue if self.ends_after > 0 else []
        return self.queue, self.problem

    def job(self, job_id: str) -> Generator[None, None, JobStatus]:
        """Answer scontrol."""
        yield
        return replace(self.gone, job_id=job_id)

    def step_states(self, job_id: str) -> Generator[None, None, list[str]]:
        """Answer sacct."""
        yield
        self.asked_accounting.append(job_id)
        return self.accounting

    def steps_of(self, _: str, name: str) -> Generator[None, None, Any]:
        """Answer squeue about steps."""
        yield
        assert name == "run-1"
        return self.steps

    def run(self, argv: list[str]) -> Generator[None, None, Answer]:
        """Do what scancel does."""
        yield
        assert argv[0] == "scancel"
        self.cancelled += argv[1:]
        return self.scancel


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """A Slurm that nobody has asked yet."""
    made = Slurm()
    for name in ("queued_jobs", "job", "step_states", "run"):
        monkeypatch.setattr(commands, name, getattr(made, name))
    monkeypatch.setattr(commands, "steps", made.steps_of)
    monkeypatch.setattr(job, "_answers", job._Answers())
    monkeypatch.setattr(job, "POLL_S", 0.002)
    monkeypatch.setattr(job, "CANCEL_MARGIN_S", 0.05)
    monkeypatch.setattr(job, "REFUSED_S", 0.05)
    monkeypatch.setattr(allocation_of_user, "STEP_S", 0.002)
    return made


def folder(tmp_path: Path, **context: Any) -> JobPaths:
    """The folder of job 7."""
    paths = JobPaths(str(tmp_path), "run-1")
    Path(paths.start(0).root).mkdir(parents=True)
    Path(paths.job_id).write_text("7\n")
    shared_files.write(paths.context, {"kill_wait_s": 0.0, "job_name": "run-1", **context})
    return paths


@pytest.fixture
def paths(tmp_path: Path) -> JobPaths:
    """The folder of a job of its own."""
    return folder(tmp_path)


@pytest.fixture
def allocation(tmp_path: Path) -> JobPaths:
    """The folder of a run in an allocation, whose step is 7.3."""
    made = folder(tmp_path, job_name="", is_shared=True)
    Path(made.start(0).step).write_text("7.3")
    return made


def test_a_job_in_the_queue(slurm: Slurm, paths: JobPaths) -> None:
    """Its own state, among others; one question serves all for a while."""
    slurm.queue = [JobStatus("77", "PENDING"), RUNNING]
    assert run_steps(job.status(paths)) == RUNNING
    assert run_steps(job.status(paths)) == RUNNING
    assert slurm.questions == 1
    run_steps(job.status(paths, fresh_s=0.0))
    assert slurm.questions == 2


def test_a_job_that_is_not_in_the_queue(slurm: Slurm, paths: JobPaths) -> None:
    """It is over, by the controller and the accounting; a queue that is not known says nothing."""
    slurm.accounting = ["CANCELLED", "OUT_OF_MEMORY", "COMPLETED"]
    assert run_steps(job.status(paths)) == replace(ENDED, state="OUT_OF_MEMORY")
    slurm.problem = "late"
    assert run_steps(job.status(paths, 0.0)) == JobStatus("7", problem="late")


def test_a_job_that_runs_though_it_was_not_listed(slurm: Slurm, paths: JobPaths) -> None:
    """The accounting is not asked about it."""
    slurm.gone, slurm.accounting = RUNNING, ["CANCELLED"]
    assert run_steps(job.status(paths)) == RUNNING


@pytest.mark.parametrize("is_queued", [True, False])
def test_a_job_whose_id_was_given_again(slurm: Slurm, paths: JobPaths, is_queued: bool) -> None:
    """It is of another run, and is not cancelled in place of ours, which Slurm has lost."""
    slurm.gone = replace(RUNNING, name="run-2")
    slurm.queue = [slurm.gone] if is_queued else []
    assert run_steps(job.status(paths)) == JobStatus("7", "UNKNOWN")
    assert run_steps(job.cancel(paths)) == ""
    assert slurm.cancelled == []


@pytest.mark.parametrize(
    ("states", "state"),
    [
        (["COMPLETED", "FAILED"], "FAILED"),
        (["FAILED", "OUT_OF_MEMORY", "CANCELLED"], "OUT_OF_MEMORY"),
        (["CANCELLED", "TIMEOUT"], "TIMEOUT"),
        (["CANCELLED", "PREEMPTED", "FAILED"], "PREEMPTED"),
        (["CANCELLED", "NODE_FAIL"], "NODE_FAIL"),
        (["FAILED", "COMPLETED"], "COMPLETED"),
        ([""], ""),
    ],
)
def test_the_state_that_says_most(states: list[str], state: str) -> None:
    """What Slurm did, before what came of it; else the job's own, which is last."""
    assert job._telling_state(states) == state


def test_a_run_in_an_allocation_is_over_before_that(slurm: Slurm, allocation: JobPaths) -> None:
    """By its step, which may be on another machine than its script."""
    slurm.queue = [RUNNING]
    slurm.steps = (["7.3"], "")
    assert run_steps(job.status(allocation)) == RUNNING
    slurm.steps = ([], "")
    assert run_steps(job.status(allocation)).state == "COMPLETED"
    slurm.steps = ([], "late")
    assert run_steps(job.status(allocation)).problem == "late"


def test_a_script_that_has_no_step_yet(slurm: Slurm, allocation: JobPaths) -> None:
    """The run is on while its script is, by its start time: a number is used again."""
    slurm.queue = [RUNNING]
    Path(allocation.start(0).step).unlink()
    ticks = procfs.start_ticks_of(os.getpid())
    Path(allocation.process).write_text(f"{os.getpid()} {ticks}")
    assert run_steps(job.status(allocation)) == RUNNING
    Path(allocation.process).write_text(f"{os.getpid()} {(ticks or 0) + 1}")
    assert run_steps(job.status(allocation)).state == "COMPLETED"


def test_the_end_of_a_job_is_awaited(
    slurm: Slurm, paths: JobPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or that it waits to start again; not for ever."""
    slurm.queue = [RUNNING]
    assert run_steps(job.await_end(paths, 0.01)) is None
    slurm.queue = [JobStatus("7", "PENDING")]
    assert run_steps(job.await_end(paths, 0.5)) == JobStatus("7", "PENDING")
    slurm.queue = []
    monkeypatch.setattr(job, "_answers", job._Answers())
    assert run_steps(job.await_end(paths, 0.5)) == ENDED


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


def test_a_job_that_was_never_submitted(slurm: Slurm, paths: JobPaths) -> None:
    """It has no id, and Slurm knows no job of its name."""
    Path(paths.job_id).write_text("held")
    os.utime(paths.context, (1.0, 1.0))
    assert run_steps(job.status(paths)).state == "UNKNOWN"
    assert run_steps(job.cancel(paths)) == ""
    assert slurm.cancelled == []
    slurm.problem = "late"  # then it is not known whether it is over
    assert run_steps(job.status(paths, 0.0)) == JobStatus(problem="late")


@pytest.mark.parametrize("is_queued", [True, False])
@pytest.mark.parametrize(
    ("states", "ended", "state"),
    [
        (["OUT_OF_MEMORY"], "FAILED", "OUT_OF_MEMORY"),
        (["COMPLETED"], "OUT_OF_MEMORY", "COMPLETED"),
        (["FAILED"], "TIMEOUT", "FAILED"),
        (["CANCELLED"], "TIMEOUT", "TIMEOUT"),
    ],
)
def test_a_run_that_shared_its_job_ends_by_its_step(
    slurm: Slurm,
    allocation: JobPaths,
    states: list[str],
    ended: str,
    state: str,
    *,
    is_queued: bool,
) -> None:
    """Another run of the job may have ended otherwise."""
    slurm.accounting, slurm.gone = states, JobStatus("7", ended)
    slurm.queue = [RUNNING] if is_queued else []
    found = run_steps(job.status(allocation))
    assert found.state == (states[0] if is_queued else state)
    assert slurm.asked_accounting == ["7.3"]


def test_a_question_about_a_job_serves_all_its_nodes(slurm: Slurm, paths: JobPaths) -> None:
    """All of them ask when it is over."""
    for _ in range(3):
        assert run_steps(job.status(paths)) == ENDED
    assert slurm.asked_accounting == ["7"]


def test_cancel_returns_once_nothing_is_left(slurm: Slurm, paths: JobPaths) -> None:
    """Slurm takes a while; a job that is over is not cancelled."""
    slurm.queue, slurm.ends_after = [RUNNING], 3
    assert run_steps(job.cancel(paths)) == ""
    assert (slurm.cancelled, slurm.queue) == (["7"], [])
    slurm.cancelled = []
    assert run_steps(job.cancel(paths)) == ""
    assert slurm.cancelled == []


def test_what_keeps_a_job_from_its_end(slurm: Slurm, paths: JobPaths) -> None:
    """Slurm does not answer, or refuses, or does not come to an end: none of it is a proof."""
    slurm.problem = "late"
    assert run_steps(job.cancel(paths)) == "Slurm does not answer: late"
    slurm.problem, slurm.queue, slurm.ends_after = "", [RUNNING], 10**6
    slurm.scancel = Answer(1, "", "scancel: error: Access denied")
    assert run_steps(job.cancel(paths)) == "scancel: scancel: error: Access denied"
    slurm.scancel = Answer(0, "", "")
    assert run_steps(job.cancel(paths)) == "job 7 is RUNNING: Slurm still ends it on n[1-2]"


def test_of_an_allocation_only_the_step_is_cancelled(slurm: Slurm, allocation: JobPaths) -> None:
    """The rest is the user's."""
    slurm.queue, slurm.ends_after = [RUNNING], 10**6
    slurm.steps = (["7.3"], "")
    run_steps(job.cancel(allocation))
    assert slurm.cancelled == ["7.3"]


def test_a_script_without_a_step_is_killed(slurm: Slurm, allocation: JobPaths) -> None:
    """It waits for others in its allocation, which is not to be ended."""
    slurm.queue = [RUNNING]
    Path(allocation.start(0).step).unlink()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as script:
        ticks = procfs.start_ticks_of(script.pid)
        Path(allocation.process).write_text(f"{script.pid} {ticks}")
        run_steps(job.cancel(allocation))
        assert script.wait() == -signal.SIGKILL
    assert slurm.cancelled == []


def test_settings_of_a_job(tmp_path: Path) -> None:
    """What the site and the launch have set; a folder without them is as most sites are."""
    context = {"spec": {"slurm": {"requeue": True}}, "proctrack": "proctrack/cgroup"}
    made = JobSettings(folder(tmp_path / "a", **{**context, "kill_wait_s": 5}))
    assert (made.kill_wait_s, made.tracks_by_cgroup) == (5.0, True)
    assert (made.is_requeued, made.is_shared) == (True, False)
    shared = JobSettings(folder(tmp_path / "c", **context, is_shared=True))
    assert (shared.is_requeued, shared.is_shared) == (False, True)
    bare = JobSettings(JobPaths(str(tmp_path / "b"), "r"))
    assert (bare.kill_wait_s, bare.tracks_by_cgroup) == (30.0, False)
    assert (bare.is_requeued, bare.is_shared, bare.job_name) == (False, False, "")


def test_the_files_of_the_last_start(paths: JobPaths) -> None:
    """Of a job that was started again."""
    assert last_start(paths).root == paths.start(0).root
    Path(paths.last_start).write_text("2\n")
    Path(paths.start(2).root).mkdir()
    Path(paths.start(2).nodes).write_text("n3\nn1\n")
    assert last_start(paths).root == paths.start(2).root
    assert vars(paths_of(paths.root)) == vars(paths)


def test_an_unfinished_file_is_none(tmp_path: Path) -> None:
    """Readers see it while it is written; the line break is written last."""
    path = tmp_path / "facts"
    assert shared_files.read(str(path)) is None
    whole = json.dumps({"a": "é\n"}) + "\n"
    for size in range(len(whole)):
        path.write_text(whole[:size])
        assert shared_files.read(str(path)) is None
    path.write_text(whole)
    assert shared_files.read(str(path)) == {"a": "é\n"}
    shared_files.write(str(path), [1])
    assert shared_files.read(str(path)) == [1]
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic"):
        shared_files.write(str(tmp_path / "link"), [2])
