"""Reruns on real hosts: the recorded code runs, or nothing is started."""

from __future__ import annotations

import json

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import PLAIN_ENTRY, Launcher, Result
from tests.lab.test_deploy import git, whole

pytestmark = [pytest.mark.promise(10), pytest.mark.documents("docs/commands.md")]

ON = ("cluster=lab", "cluster.only=[node1,node2]")
NODES = ("node1", "node2")
PROGRAM = "import sys; print('{}', *sys.argv[1:], flush=True)\n"


def planned(done: Result) -> dict[str, object]:
    """The run's `plan.json`."""
    plan: dict[str, object] = json.loads((done.folder / "plan.json").read_text())
    return plan


def said(done: Result) -> set[str]:
    """What every rank printed."""
    return {done.log(node, rank).strip() for rank, node in enumerate(NODES)}


@pytest.fixture
def project(on_lab: Launcher) -> Launcher:
    """A user who stands below a git repository, one commit old."""
    (on_lab.folder / "train.py").write_text(PROGRAM.format("old"))
    git(on_lab.folder, "init", "-q")
    git(on_lab.folder, "add", ".")
    git(on_lab.folder, "commit", "-qm", "first")
    return on_lab


def test_the_code_of_then_or_none(lab: Lab, project: Launcher) -> None:
    """Where hosts hold it, it runs; where one does not, only the same tree will do."""
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
    assert f"note: again: run {first.folder.name} as recorded on 20" in again.err
    assert "pushing" not in again.err
    assert again.folder != first.folder
    told = planned(again)
    assert (told["release"], told["commit"]) == (release, planned(first)["commit"])
    assert [whole(lab[node]) for node in NODES] == [[release]] * 2, "something was pushed"
    (project.folder / "aside.yaml").rename(project.conf / "cluster" / "lab.yaml")

    cleaned = project("clean", "cluster=lab", "cluster.only=node2", "--older-than", "0")
    assert cleaned.code == 0, cleaned
    for how in ("dry_run=false", "dry_run=true"):
        refused = user(f"rerun={first.folder.name}", how)
        assert refused.code == 3, refused
        assert f"ran release {release}, which is not on node2 (any more), and" in refused.err
        assert f"git checkout {planned(first)['commit']}".rstrip("+") in refused.err
    assert len(list((below / "runs").glob("*-*/plan.json"))) == 2, "a refused run left a record"

    (project.folder / "train.py").write_text(PROGRAM.format("old"))
    shown = user(f"rerun={first.folder.name}", "dry_run=true")
    assert shown.code == 0, shown
    assert f"release {release} is not on node2 yet: a launch pushes it first" in shown.out
    third = user(f"rerun={first.folder.name}")
    assert (third.code, said(third)) == (0, {"old --lr 0.1"}), third
    assert planned(third)["release"] == release
    assert whole(lab["node2"]) == [release]


@pytest.mark.all
def test_shipped_tasks_and_code_of_the_hosts_own(lab: Lab, project: Launcher) -> None:
    """What cannot be another is refused where it is; what may be, is said."""
    shipped = project("cluster=lab", "cluster.only=[node1]", "task=env")
    assert shipped.code == 0, shipped
    again = project("rerun=latest")
    assert again.code == 0, again
    plan = planned(again)
    assert (plan["tasks_hash"], plan["release"]) == (planned(shipped)["tasks_hash"], "")
    (again.folder / "plan.json").write_text(json.dumps({**plan, "tasks_hash": "0" * 16}))
    refused = project(f"rerun={again.folder.name}")
    assert refused.code == 2, refused
    assert "ran runner.tasks.env of another version of the runner" in refused.err
    assert "task.script=env.py" in refused.err
    other = project(f"rerun={again.folder.name}", "task=base", "task.script=train.py")
    assert (other.code, other.log("node1", 0).strip()) == (0, "old"), other
    assert "had no release: the code you stand in is what runs" in other.err

    lab["node1"].sh("mkdir -p ~/code && echo 'print(1)' > ~/code/train.py")
    words = ('cluster.project="~/code"', "task.script=train.py")
    assert project("cluster=lab", "cluster.only=[node1]", *words).code == 0
    lab["node1"].sh("echo 'print(2)' > ~/code/train.py")
    again = project("rerun=latest")
    assert (again.code, again.log("node1", 0).strip()) == (0, "2"), again
    assert "note: the code is what is in ~/code on the hosts now" in again.err
