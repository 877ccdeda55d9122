"""Everyday projects: hyphens in node names, two projects on one cluster, an earlier runs/."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest

from tests.lab.inspecting import next_commands
from tests.lab.lab import Lab, LabFactory
from tests.lab.launching import Launcher
from tests.lab.waiting import wait_until_idle

pytestmark = [pytest.mark.promise(10)]


def test_every_next_command_runs_as_printed(lab_factory: LabFactory, launcher: Launcher) -> None:
    """Those after a launch that is left alone, and those of messages about mistakes.

    They name a node with a hyphen, whose key was typed for the launch.
    """
    lab = lab_factory(names=["gpu-01"])
    lab.write_cluster(launcher.conf)
    (launcher.conf / "task").mkdir()
    command = "[sh, -c, 'until test -e ~/go; do sleep 0.1; done']"
    task = f"defaults: [base]\ncommand: {command}\nentry: plain\n"
    (launcher.conf / "task" / "up.yaml").write_text(task)
    address = f"cluster.nodes.gpu-01.host={lab['gpu-01'].address}"
    left = launcher("cluster=lab", "task=up", "detach=true", address, "~cluster.env", "--", "a b")
    assert left.code == 0, left
    lab["gpu-01"].sh("touch ~/go")
    commands = next_commands(left.err)
    assert [words.split()[0] for words in commands] == ["attach", "logs", "stop", "pull"]
    for mistake in ([], ["stop"], ["logs", "--run", "NO"], ["xyzzy"], ["~task.args.x", "task=up"]):
        said = launcher(*mistake)
        assert (said.code, "Traceback" in said.err) == (2, False), said
        commands += next_commands(said.err)
    assert len(commands) > 7, commands
    for words in commands:
        done = launcher(*shlex.split(words))
        assert done.code == 0, (words, done)
    wait_until_idle(lab)


@pytest.mark.all
def test_next_commands_of_other_verbs_run_as_printed(lab: Lab, on_lab: Launcher) -> None:
    """Those of a new project, of hosts out of reach, and where there is nothing to look at."""
    lab.write_cluster(on_lab.conf, "mine", names=["node1"])
    lab.write_cluster(on_lab.conf, "cut", names=["node1"], ssh={"port": 9})
    lab.write_cluster(on_lab.conf, "bare", names=["node1"], host_python="/no/python")
    (on_lab.conf / "task").mkdir()
    task = "defaults: [base]\ncommand: 'true'\nentry: plain\n"
    (on_lab.conf / "task" / "train.yaml").write_text(task)
    begun = on_lab("init")
    assert begun.code == 0, begun
    commands = next_commands(begun.out)
    assert commands == ["check", "dry_run=true", ""]
    for verb in ("check", "clean", "ps"):
        said = on_lab(verb, "--cluster", "cut")
        assert (said.code, "node1" in said.out + said.err) == (3, True), said
        commands += next_commands(said.out + said.err)
    commands += next_commands(on_lab("ps", "--cluster", "bare").err)
    assert commands[-1] == "explain cluster.host_python --cluster bare", commands
    ends = (["why"], ["stacks", "--cluster", "mine"], ["stop", "--run", "latest"])
    for words in (*ends, ["task=valuation"], ["cluster=other"]):
        said = on_lab(*words)
        assert said.code in (2, 3), said
        commands += next_commands(said.err)
    assert len(commands) > 6, commands
    for words_ in dict.fromkeys(commands):
        done = on_lab(*shlex.split(words_))
        assert done.code == 0, (words_, done)
    (on_lab.folder / "runs" / "latest" / "plan.json").write_text("{")
    damaged = on_lab("why")
    (pull,) = next_commands(damaged.err)
    assert (damaged.code, pull.split()[0]) == (3, "pull"), damaged
    assert [on_lab(*shlex.split(words_)).code for words_ in (pull, "why")] == [0, 0]


def test_two_projects_on_one_cluster(lab: Lab, on_lab: Launcher) -> None:
    """Each has records of its own, and an id names, shows and ends that run and no other."""
    other = on_lab.in_folder(on_lab.folder.parent / "other project")
    other.folder.mkdir()
    find = ("--cluster", "lab", "--config-dir", str(on_lab.conf))
    words = ("cluster=lab", "detach=true", "grace_s=1")
    first = on_lab(*words, "run_id=first", *on_lab.rank_overrides("print=first", "sleep=600"))
    ranks = other.rank_overrides("print=second", "sleep=600")
    second = other(*words, "run_id=second", *find[2:], *ranks)
    assert (first.code, second.code) == (0, 0), (first, second)
    for user, run in ((on_lab, "first"), (other, "second")):
        records = {path.parent.resolve().name for path in user.folder.glob("runs/*/plan.json")}
        assert records == {run}
        assert (user.folder / "runs" / "latest").resolve().name == run
        logs = user("logs", "--run", run, *find)
        assert sorted(logs.out.splitlines()) == [f"[node1:0] {run}", f"[node2:1] {run}"], logs
    stopped = on_lab("stop", "--run", "first", "--cluster", "lab")
    assert stopped.code == 0, stopped
    listed = json.loads(on_lab("ps", "--cluster", "lab", "--json").out)["runs"]
    states = {row["run_id"]: row["state"] for row in listed}
    assert states.get("second") == "running", states
    assert "first" not in states
    why = on_lab("why", "--run", "first")
    assert "run first " in why.out, why
    assert other("stop", "--run", "second", *find).code == 0
    wait_until_idle(lab)


@pytest.mark.all
def test_a_runs_folder_that_was_there_before(on_lab: Launcher) -> None:
    """Our records there are not pushed, and git shows none of them but the link `latest`."""

    def git(*words: str) -> str:
        argv = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(
            argv, cwd=on_lab.folder, check=True, capture_output=True, text=True
        ).stdout

    events = on_lab.folder / "runs" / "tb" / "events"
    events.parent.mkdir(parents=True)
    events.write_text("scalars")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    words = ["cluster=lab", *on_lab.rank_overrides("print=hi")]
    launches = [on_lab(*words) for _ in range(2)]
    assert [done.code for done in launches] == [0, 0], launches
    assert git("status", "--porcelain").splitlines() == ["?? runs/latest"]
    releases = {json.loads((done.folder / "plan.json").read_text())["release"] for done in launches}
    assert len(releases) == 1, "the record of a run changed the code"
    assert events.read_text() == "scalars"
