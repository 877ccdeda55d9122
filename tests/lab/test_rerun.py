"""Reruns on real hosts: the recorded code runs, or nothing is started."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import PLAIN_ENTRY, Launcher, Result
from tests.lab.test_deploy import git, whole

pytestmark = [pytest.mark.promise(10)]

ON = ("cluster=lab",)
NODES = ("node1", "node2")
PROGRAM = "import sys; print('{}', *sys.argv[1:], flush=True)\n"


def planned(done: Result) -> dict[str, object]:
    plan: dict[str, object] = json.loads((done.folder / "plan.json").read_text())
    return plan


def said(done: Result) -> set[str]:
    return {done.log(node, rank).strip() for rank, node in enumerate(NODES)}


@pytest.fixture
def project(on_lab: Launcher) -> Launcher:
    """A user who stands below a git repository, one commit old."""
    (on_lab.folder / "train.py").write_text(PROGRAM.format("old"))
    git(on_lab.folder, "init", "-q")
    git(on_lab.folder, "add", ".")
    git(on_lab.folder, "commit", "-qm", "first")
    return on_lab


def test_the_code_of_then_for_ever(lab: Lab, project: Launcher) -> None:
    """Where hosts hold it, it runs; where one does not, it is pushed from beside the record.

    If it was removed there, too, that is refused by name.
    """
    below = project.folder / "exp"
    below.mkdir()
    user = project.in_folder(below)
    (below / "keep").touch()
    words = (PLAIN_ENTRY, "task.script=../train.py", "task.args.lr=0.1", "task.env.RERUN=yes")
    first = user(*ON, *words)
    assert (first.code, said(first)) == (0, {"old --lr 0.1"}), first
    release = planned(first)["release"]
    assert [whole(lab[node]) for node in NODES] == [[release]] * 2

    (project.folder / "train.py").write_text(PROGRAM.format("new"))
    (project.conf / "cluster" / "lab.yaml").rename(project.folder / "aside.yaml")
    again = user("rerun=latest", "task.args.lr=0.2")
    assert (again.code, said(again)) == (0, {"old --lr 0.2"}), again
    assert f"note: again: run {first.folder.name} as recorded, with task.args.lr=0.2\n" in again.err
    assert "pushing" not in again.err
    assert again.folder != first.folder
    told = planned(again)
    assert (told["release"], told["commit"]) == (release, planned(first)["commit"])
    assert [whole(lab[node]) for node in NODES] == [[release]] * 2, "something was pushed"
    (project.folder / "aside.yaml").rename(project.conf / "cluster" / "lab.yaml")

    cleaned = project("clean", "cluster=lab", "cluster.only=node2", "--older-than", "0")
    assert cleaned.code == 0, cleaned
    shown = user(f"rerun={first.folder.name}", "dry_run=true")
    assert shown.code == 0, shown
    assert f"release {release} is not on node2 yet: a launch pushes it first" in shown.out
    third = project(f"rerun=exp/runs/{first.folder.name}")  # from another folder of the project
    assert (third.code, said(third)) == (0, {"old --lr 0.1"}), third
    assert planned(third)["release"] == release
    assert whole(lab["node2"]) == [release]

    shutil.rmtree(below / "runs/.objects")
    assert project("clean", "cluster=lab", "--older-than", "0").code == 0
    refused = user(f"rerun={first.folder.name}")
    assert refused.code == 3, refused
    assert "which is not on node1, node2 (any more), and was removed from" in refused.err
    commit = str(planned(first)["commit"]).rstrip("+")
    assert f"git checkout {commit}, restore what was not committed" in refused.err


def test_a_sweep_is_one_code_for_all_its_runs(lab: Lab, project: Launcher, tmp_path: Path) -> None:
    """An edit during the first run reaches no later one, on another host neither."""
    gate = tmp_path / "gate"
    waiting = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
    (project.folder / "train.py").write_text("print('up', flush=True)\n" + waiting)
    git(project.folder, "commit", "-qam", "second")
    words = ("cluster=lab", PLAIN_ENTRY, "task.script=train.py")
    sweep = project.start(*words, "cluster.only=[node1],[node2]", "-m")
    sweep.until_printed("] up", 1)
    objects = project.folder / "runs/.objects/releases"
    sweep.until(lambda: objects.is_dir() and list(objects.iterdir()), "the code to be kept")
    (project.folder / "train.py").write_text("raise SystemExit('edited')\n")
    gate.touch()
    done = sweep.wait()

    assert done.code == 0, done
    (record,) = (project.folder / "runs").glob("????-????-sweep-*/sweep.json")
    told = json.loads(record.read_text())
    runs = [project.folder / "runs" / run["run_id"] for run in told["runs"]]
    assert [run["exit_code"] for run in told["runs"]] == [0, 0]
    plans = [json.loads((run / "plan.json").read_text()) for run in runs]
    assert len({plan["release"] for plan in plans}) == 1
    assert whole(lab["node2"]) == [plans[0]["release"]]
    assert done.err.splitlines()[-2] == "2 of 2 runs succeeded"

    again = project(f"rerun={runs[1].name}")
    assert (again.code, again.log("node2", 0).strip()) == (0, "up"), again
