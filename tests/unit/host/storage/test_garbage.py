"""Garbage collection on a host: what goes and what stays."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from runner.core.wire.codec import encode
from runner.core.wire.events import Ended
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.core.wire.states import State
from runner.host.process import procfs
from runner.host.storage import garbage
from runner.host.storage.run_folder import EventLog


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    return tmp_path / "work"


def run(workdir: Path, name: str) -> Path:
    """A run of node `a` that ended ten days ago."""
    folder = workdir / "runs" / name / "a"
    folder.mkdir(parents=True)
    order = Order(name, "a", 0, str(workdir), "/", release="r")
    (folder / "order.json").write_text(json.dumps(encode(order)))
    EventLog(RunPaths(str(workdir), name, "a"), order).append(Ended(State.SUCCEEDED))
    ten_days_ago = time.time() - 10 * 86400.0
    for path in (folder / "events.jsonl", folder):
        os.utime(path, (ten_days_ago, ten_days_ago))
    return folder


def test_what_is_no_run_is_not_ours_to_remove(workdir: Path) -> None:
    """Somebody set `cluster.workdir` to a folder that has a `runs/` of its own."""
    run(workdir, "exp-1").joinpath("order.json").unlink()
    run(workdir, "Experiment_2")

    assert garbage.collect_garbage(str(workdir), "a", 86400.0, dry_run=False)["runs"] == []
    assert (workdir / "runs/exp-1/a/events.jsonl").exists()


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
        gone = garbage.collect_garbage(str(workdir), "a", 0, dry_run=False)
        left.kill()

    assert (gone["runs"], gone["in_use"]) == ([names[0], names[2]], [names[1]])
    assert read.count(f"/proc/{left.pid}/environ") == 1
