"""A job on its login node: what becomes of its secrets."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.core.codec import encode
from runner.core.model.run_info import RunInfo
from runner.core.model.slurm import JobStatus
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import JobPaths
from runner.host.agent import runs
from runner.host.agent.runs import Handler
from runner.host.agent.server import AgentContext
from runner.host.agent.slurm import requests
from runner.host.process.event_loop import run_steps
from runner.host.slurm import commands, job, shared_files
from runner.host.slurm.commands import Answer

RUN_ID = "0314-1592-digits-65a3"


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


@pytest.mark.parametrize("kind", ["submit", "job", "cancel_job"])
def test_a_run_id_that_is_no_name_is_refused(kind: str) -> None:
    """Paths are made from it."""
    context = cast("AgentContext", SimpleNamespace(workdir="/w"))
    steps = getattr(requests.Handler(context), f"on_{kind}")(Frame(kind, {"run_id": "../x"}))
    with pytest.raises(ValueError, match="'../x' is no run"):
        run_steps(steps)


def test_the_secrets_of_a_job_that_is_over_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm may have killed its script; not while the job waits, or may start again."""
    paths = JobPaths(str(tmp_path), RUN_ID)
    Path(paths.root).mkdir(parents=True)
    Path(paths.job_id).write_text("7")
    secrets = Path(paths.secrets)
    secrets.touch()

    def is_kept(jobs: list[JobStatus], problem: str, state: str, *, requeue: bool) -> bool:
        def queued(**_: float) -> Generator[None, None, Any]:
            yield
            return jobs, problem

        def status(_: JobPaths) -> Generator[None, None, JobStatus]:
            yield
            return JobStatus("7", state)

        monkeypatch.setattr(job, "queued", queued)
        monkeypatch.setattr(job, "status", status)
        slurm = {"nnodes": 2, "requeue": requeue}
        spec = {"cluster": {"slurm": slurm}}
        context = {"info": encode(RunInfo(RUN_ID)), "spec": spec, "job_name": RUN_ID}
        shared_files.write(paths.context, context)
        agent: Any = SimpleNamespace(workdir=str(tmp_path), answer=lambda *_, **__: None)
        frame = Frame("runs", {"id": 1, "node": "login", "run_id": RUN_ID})
        run_steps(Handler(agent).on_runs(frame))
        return secrets.exists()

    pending = JobStatus("7", "PENDING", "Priority", name=RUN_ID)
    assert is_kept([pending], "", "UNKNOWN", requeue=False)
    assert is_kept([], "late", "UNKNOWN", requeue=False)
    assert is_kept([], "", "PREEMPTED", requeue=True)
    assert not is_kept([], "", "UNKNOWN", requeue=True)


def test_a_listing_does_not_wait_for_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its controller is dead: why the job is not known is said, and the run is listed."""
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nexec sleep 60\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(runs, "LISTING_LIMIT_S", 0.1)
    row: dict[str, Any] = {"job": {"job_id": "7"}, "alive": True}
    assert run_steps(runs._ask_slurm(str(tmp_path), [row])) == set()
    assert row["job"]["problem"] == "squeue took more than 0.1 s"
