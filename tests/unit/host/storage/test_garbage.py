"""What goes on a host and what stays: runs, prepared environments, and what tasks keep."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
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
from runner.host.storage import environment, garbage
from runner.host.storage.keep import link_kept
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


def test_run_of_which_a_process_is_left_stays(workdir: Path) -> None:
    names = ["old-0", "old-1"]
    for name in names:
        run(workdir, name)
    env = {"RUNNER_RUN_ID": names[1], "RUNNER_NODE": "a"}
    with subprocess.Popen(["sleep", "900"], env={**os.environ, **env}) as left:
        gone = garbage.collect_garbage(str(workdir), "a", 0, dry_run=False)
        left.kill()

    assert (gone["runs"], gone["in_use"]) == (names[:1], names[1:])


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


def test_what_another_process_could_not_make_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each that has waited for it."""
    target = str(tmp_path / "prepared" / "aa")
    made = environment.locked(str(tmp_path), target, 60.0)
    with contextlib.ExitStack() as first:
        first.enter_context(made)
        monkeypatch.setattr(environment, "pause", lambda _: first.close())
        second = environment.locked(str(tmp_path), target, 60.0)
        with pytest.raises(ValueError, match="could not make it"):
            second.__enter__()


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


def test_a_kept_folder_is_linked_once_and_where_nothing_was_pushed(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    order = Order("r1", "a", 0, str(tmp_path), str(work), keep=("out/ckpt",), keep_place="p/t")
    link_kept(order)
    link_kept(order)  # a later attempt
    link = work / "out" / "ckpt"
    assert link.readlink() == tmp_path / "keep" / "p" / "t" / "out" / "ckpt"
    assert link.is_dir()
    link.unlink()
    link.mkdir()
    (link / "best.pt").touch()
    with pytest.raises(ValueError, match="out/ckpt is in the code that was pushed"):
        link_kept(order)
