"""Garbage collection on a host: what goes and what stays."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import JobPaths, RunPaths
from runner.host.agent import clean
from runner.host.process import procfs
from runner.host.process.event_loop import run_steps
from runner.host.storage import garbage, run_owner
from tests.unit.release_builders import done

if TYPE_CHECKING:
    from runner.host.agent.server import AgentContext


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    return tmp_path / "work"


def run(workdir: Path, name: str) -> Path:
    """A run of node `a` that ended ten days ago."""
    folder = workdir / "runs" / name / "a"
    folder.mkdir(parents=True)
    (folder / "format").write_text("2\n")
    (folder / "order.json").write_text(json.dumps({"release": "r"}))
    (folder / "state.json").write_text(json.dumps({"state": "succeeded"}))
    ten_days_ago = time.time() - 10 * 86400.0
    os.utime(folder / "state.json", (ten_days_ago, ten_days_ago))
    return folder


def test_what_is_no_run_is_not_ours_to_remove(workdir: Path) -> None:
    """Somebody set `cluster.workdir` to a folder that has a `runs/` of its own."""
    run(workdir, "exp-1").joinpath("format").unlink()
    run(workdir, "Experiment_2")

    assert done(garbage.collect_garbage(str(workdir), "a", 86400.0, dry_run=False))["runs"] == []
    assert (workdir / "runs/exp-1/a/order.json").exists()


def test_run_whose_supervisor_lives_stays(workdir: Path) -> None:
    """Its socket says so, whatever its record says."""
    name = f"held-{os.getpid()}"  # names of sockets are the machine's
    run(workdir, name)
    listener = run_owner.RunSocket(RunPaths(str(workdir), name, "a")).take()
    assert listener is not None

    with listener:
        gone = done(garbage.collect_garbage(str(workdir), "a", 0, dry_run=False))

    assert (gone["runs"], gone["in_use"]) == ([], [name])
    assert done(garbage.collect_garbage(str(workdir), "a", 0, dry_run=False))["runs"] == [name]


def test_run_of_which_a_process_is_left_stays(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many old runs there are, the environment of a process is read once."""
    names = [f"old-{number}" for number in range(3)]
    for name in names:
        run(workdir, name)
    read_text = procfs.read_text
    read: list[str] = []

    def record(path: str) -> str:
        read.append(path)
        return read_text(path)

    monkeypatch.setattr(procfs, "read_text", record)
    env = {"RUNNER_RUN_ID": names[1], "RUNNER_NODE": "a"}
    with subprocess.Popen(["sleep", "900"], env={**os.environ, **env}) as left:
        gone = done(garbage.collect_garbage(str(workdir), "a", 0, dry_run=False))
        left.kill()

    assert (gone["runs"], gone["in_use"]) == ([names[0], names[2]], [names[1]])
    assert read.count(f"/proc/{left.pid}/environ") == 1


def test_slurm_is_asked_only_where_a_job_has_a_run(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its controller is dead, its answer takes seconds, and `clean` waits for it."""
    run(workdir, "ended")
    asked, answers = workdir / "asked", list[dict[str, object]]()
    (workdir / "squeue").write_text(f"#!/bin/sh\ntouch {asked}\n")
    (workdir / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(workdir), prepend=":")
    context = SimpleNamespace(
        workdir=str(workdir), answer=lambda _, __, **data: answers.append(data)
    )
    handler = clean.Handler(cast("AgentContext", context))
    request = {"node": "a", "older_than_s": 0, "dry_run": False}
    run_steps(handler.on_clean(Frame("clean", request)))
    assert (answers[0]["runs"], asked.exists()) == (["ended"], False)

    job = Path(JobPaths(str(workdir), "waits").root)
    job.mkdir(parents=True)
    os.utime(job, (1, 1))
    run_steps(handler.on_clean(Frame("clean", request)))
    assert (answers[1]["runs"], asked.exists(), job.exists()) == (["waits"], True, False)
