"""Requests about a job on its login node: its submission, and what it answers of its start."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from runner.core.model.slurm import JobStatus
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import JobPaths
from runner.host.agent.server import AgentContext
from runner.host.agent.slurm import requests
from runner.host.process.event_loop import run_steps
from runner.host.slurm import commands
from runner.host.slurm.commands import Answer

RUN_ID = "0314-1592-digits-65a3"


@pytest.fixture
def paths(tmp_path: Path) -> JobPaths:
    """The folder of a job."""
    made = JobPaths(str(tmp_path), RUN_ID)
    Path(made.start(0).root).mkdir(parents=True)
    return made


def submitted(
    paths: JobPaths,
    monkeypatch: pytest.MonkeyPatch,
    answer: Answer,
    queue: JobStatus,
) -> str:
    """The id of a job that sbatch answers so about, with this queue."""

    def run(argv: Sequence[str], _: float) -> Generator[None, None, Answer]:
        yield
        assert [*argv] == ["sbatch", "--parsable", f"--chdir={paths.root}", paths.script]
        return answer

    def queued() -> Generator[None, None, tuple[list[JobStatus], str]]:
        yield
        return [queue], ""

    monkeypatch.setattr(commands, "run", run)
    monkeypatch.setattr(commands, "queued_jobs", queued)
    return run_steps(requests._submit(paths, RUN_ID))


@pytest.mark.parametrize("leaves", [True, False])
def test_nothing_is_left_of_a_job_that_is_not_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, leaves: bool
) -> None:
    """Its secrets least of all: sbatch refuses, or the controller leaves meanwhile."""

    def run(argv: Sequence[str], *_: float) -> Generator[None, None, Answer]:
        yield
        while leaves and argv[0] == "sbatch":
            yield
        return Answer(int(argv[0] == "sbatch"), "KillWait = 30 sec\n", "sbatch: error: no")

    monkeypatch.setattr(commands, "run", run)
    monkeypatch.setattr(commands, "missing_program", lambda: "")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    texts = dict.fromkeys(("nonce", "token", "script"), "x")
    data = {"id": 1, "run_id": RUN_ID, "code_size": 0, "secrets": {"A": "1"}, "context": {}}
    context = cast("AgentContext", SimpleNamespace(workdir=str(tmp_path)))
    steps = requests.Handler(context).on_submit(Frame("submit", {**data, **texts}))
    secrets = Path(JobPaths(str(tmp_path), RUN_ID).secrets)
    while not secrets.exists():
        next(steps)
    if leaves:
        steps.close()
    else:
        with pytest.raises(ValueError, match="sbatch: error: no"):
            run_steps(steps)
    assert [*(tmp_path / "runs").iterdir()] == []


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Answer(1, "", "note\nsbatch: error: Invalid account\n"), "sbatch: error: Invalid account"),
        (Answer(0, "Submitted!\n", ""), "sbatch answered 'Submitted!'"),
        (Answer(None, "", ""), "did not answer in time"),
    ],
)
def test_why_a_job_is_not_taken(
    paths: JobPaths, monkeypatch: pytest.MonkeyPatch, answer: Answer, problem: str
) -> None:
    """In sbatch's words; a job of that name in the queue is taken, whatever sbatch says of it."""
    with pytest.raises(ValueError, match=problem):
        submitted(paths, monkeypatch, answer, JobStatus("8", name="another"))
    assert submitted(paths, monkeypatch, answer, JobStatus("8", name=RUN_ID)) == "8"


@pytest.mark.parametrize(
    ("state", "code", "begun"),
    [
        ("COMPLETED", "0:0", True),
        ("FAILED", "1:0", True),
        ("FAILED", "3:0", False),
        ("CANCELLED", "0:15", False),
        ("RUNNING", "0:0", False),
    ],
)
def test_whether_a_job_that_is_over_has_begun_its_run(
    state: str, code: str, *, begun: bool
) -> None:
    """Its script ends with the run's code, and with 3 if there was none."""
    assert requests.has_begun(JobStatus("7", state, exit_code=code)) == begun
