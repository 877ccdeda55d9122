"""What goes on a host and what stays: runs, and prepared environments."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.wire.codec import encode
from runner.core.wire.events import Ended
from runner.core.wire.facts import Prepare
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.core.wire.states import State
from runner.host.process import procfs
from runner.host.storage import environment, garbage
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


PREPARE = Prepare(lines=("make",), python="/bin/sh", digest="d")


def test_it_is_another_one_where_what_it_depends_on_differs(tmp_path: Path) -> None:
    wanted = [
        PREPARE,
        replace(PREPARE, lines=("make", "all")),
        replace(PREPARE, python="/bin/true"),
        replace(PREPARE, digest="e"),
    ]
    folders = {environment.folder_of(each, {}, str(tmp_path)) for each in wanted}
    assert len(folders) == 4


def test_one_process_makes_it_for_all_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another one could not make is not tried again by each that has waited for it."""
    waits = threading.Event()

    def pause(_: float) -> None:
        waits.set()
        time.sleep(0.01)

    monkeypatch.setattr(environment, "pause", pause)
    for suffix in ("made", "log"):
        target = str(tmp_path / "prepared" / suffix)
        said: list[object] = []

        def wait(target: str = target, said: list[object] = said) -> None:
            try:
                with environment.locked(str(tmp_path), target, 60.0):
                    said.append(environment.is_made(target))
            except ValueError as error:
                said.append(str(error))

        waiting = threading.Thread(target=wait)
        with environment.locked(str(tmp_path), target, 60.0):
            waits.clear()
            waiting.start()
            assert waits.wait(60)
            Path(f"{target}.{suffix}").touch()
        waiting.join()
        assert said == [True] if suffix == "made" else "could not make it" in str(said)


def test_what_a_run_names_stays(tmp_path: Path) -> None:
    parent = tmp_path / "prepared"
    for name in ("aa", "bb"):
        (parent / name).mkdir(parents=True)
        (parent / f"{name}.made").touch()
    with environment.locked(str(tmp_path), str(parent / "cc"), 60.0):  # it is being made
        assert environment.find_unused(str(tmp_path), 2e9 * 2) == [
            str(parent / "aa"),
            str(parent / "bb"),
        ]
    environment.remove(str(parent / "cc"))
    run = tmp_path / "runs" / "r" / "a"
    run.mkdir(parents=True)
    env = {environment.VARIABLE: str(parent / "bb")}
    order = {"run_id": "r", "node": "a", "attempt": 0, "workdir": "/w", "cwd": "/w"}
    (run / "order.json").write_text(json.dumps({**order, "program": {"env": env}}))
    assert environment.find_unused(str(tmp_path), 1000.0) == [str(parent / "aa")]
    environment.remove(str(parent / "aa"))
    assert sorted(path.name for path in parent.iterdir()) == ["bb", "bb.made"]
