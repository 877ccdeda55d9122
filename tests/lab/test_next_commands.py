"""Next commands in messages: each runs as it is printed."""

from __future__ import annotations

import shlex

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
    with lab_factory(names=["gpu-01"]) as lab:
        lab.write_cluster(launcher.conf)
        (launcher.conf / "task").mkdir()
        command = "[sh, -c, 'until test -e ~/go; do sleep 0.1; done']"
        task = f"defaults: [base]\ncommand: {command}\nentry: plain\n"
        (launcher.conf / "task" / "up.yaml").write_text(task)
        address = f"cluster.nodes.gpu-01.host={lab['gpu-01'].address}"
        left = launcher(
            "cluster=lab", "task=up", "detach=true", address, "~cluster.env", "--", "a b"
        )
        assert left.code == 0, left
        lab["gpu-01"].sh("touch ~/go")
        commands = next_commands(left.err)
        assert [words.split()[0] for words in commands] == ["attach", "logs", "stop", "pull"]
        for mistake in (
            [],
            ["stop"],
            ["logs", "--run", "NO"],
            ["xyzzy"],
            ["~task.args.x", "task=up"],
        ):
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
    (pull,) = next_commands(damaged.err.replace("NAME", "mine"))
    assert (damaged.code, pull.split()[:3]) == (3, ["pull", "--cluster", "mine"]), damaged
    assert [on_lab(*shlex.split(words_)).code for words_ in (pull, "why")] == [0, 0]
