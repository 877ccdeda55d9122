"""The verbs as a user types them, on real hosts: what they print, how they end, what they leave."""

from __future__ import annotations

import json
import re
import signal
from contextlib import closing

import pytest
import yaml

from tests.lab.lab import Lab
from tests.lab.launching import FAB, ROOT, Controller, Launcher, Result
from tests.lab.waiting import wait_until

NODES = ("node1", "node2")
VERBS = [
    *("attach", "check", "clean", "compare", "config", "deploy", "exec", "explain", "export"),
    *("init", "launch", "logs", "ps", "pull", "report", "stacks", "stop"),
    *("top", "why"),
]
AWKWARD = ["a b", "$HOME", "it's", '"quoted"', "", "*", "-x", "--cluster", "k=v", "a\nb", "--", "ü"]


def data(done: Result) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads(done.out)
    return found


def answer(out: str, code: int = 0, err: str = "", problem: str = "") -> dict[str, object]:
    return {"code": code, "out": out, "err": err, "problem": problem, "dropped": False}


def test_output_is_shown_as_it_comes(lab: Lab, on_lab: Launcher) -> None:
    """By whole lines with their host; failures at the end, and the worst of them is the code."""
    wait = "while [ ! -e /tmp/go ]; do sleep 0.05; done; rm /tmp/go"
    line = f"hostname; echo half; {wait}; echo of it >&2; case $(hostname) in node2) exit 3;; esac"
    running = on_lab.start("exec", line, "cluster=lab")
    running.until_printed("half", times=2)
    assert sorted(running.out.splitlines()) == sorted(
        f"[{name}] {text}" for name in NODES for text in (name, "half")
    )
    for name in NODES:
        lab[name].sh("touch /tmp/go")
    done = running.wait()
    assert done.code == 3, done
    *lines, failures = done.err.splitlines()
    assert sorted(lines) == [f"[{name}] of it" for name in NODES]
    assert failures == "node2: exit 3"


def test_streams_and_ends_are_told_apart_for_programs(on_lab: Launcher) -> None:
    """`--json` has code, output, errors and problem of each host: of a command without input.

    One word is a line for the shell: it has variables, pipes and an exit code.
    """
    line = 'cat; echo "${FROM_SETUP#x}" | cat; echo err >&2; [ $(hostname) = node1 ] || kill -9 $$'
    setup = 'cluster.setup=["export FROM_SETUP=xyes"]'
    done = on_lab("exec", line, "cluster=lab", setup, "--json")
    assert done.code == 128 + signal.SIGKILL, done
    codes = {"node1": 0, "node2": -9}
    assert data(done) == {node: answer("yes\n", codes[node], "err\n") for node in NODES}


@pytest.mark.promise(14)
def test_several_words_are_exact(on_lab: Launcher) -> None:
    """No shell sees them, here or there; flags of ours after `--` are the command's."""
    script = "import json, sys; print(json.dumps(sys.argv[1:]))"
    words = ["exec", "--cluster", "lab", "--json", "--", "python3", "-c", script, *AWKWARD]
    done = on_lab.succeed(*words)
    assert [json.loads(str(data(done)[node]["out"])) for node in NODES] == [AWKWARD] * 2


def test_the_commands_of_a_killed_agent_are_ended(lab: Lab, on_lab: Launcher) -> None:
    """Also in sessions of their own; the host is named, since nobody could say so."""
    line = "setsid sleep 600 & sleep 600"
    running = on_lab.start("exec", "--cluster", "lab", "--", line)

    def sleepers() -> int:
        return sum(each.cmdline.startswith("sleep 600") for each in lab["node2"].processes())

    running.until(lambda: sleepers() == 2, "the command")
    links = [each.pid for each in lab["node2"].processes() if " node2 v1" in each.cmdline]
    lab["node2"].kill(min(links))
    wait_until(lambda: sleepers() == 0, "nothing left")
    running.send()
    done = running.wait()
    assert done.code == 5, done
    assert "node2: lost: the connection to it broke" in done.err
    assert "node1: interrupted" in done.err


def test_what_takes_too_long_is_killed_on_the_host(lab: Lab, on_lab: Launcher) -> None:
    """With what it started in sessions of its own, and its output so far is shown."""
    line = "trap '' TERM INT HUP; setsid sleep 600 & echo begun; sleep 600"
    done = on_lab("exec", "--cluster", "lab", "--timeout", "1", "--", line)
    assert done.code == 128 + signal.SIGKILL, done
    assert sorted(done.out.splitlines()) == [f"[{name}] begun" for name in NODES]
    assert done.err == "node[1-2]: did not end in time and was killed\n"
    assert not [name for name in NODES if lab[name].processes("sleep\x00600")]


def test_ctrl_c_ends_it_on_every_host(lab: Lab, on_lab: Launcher) -> None:
    """Exit 130 without a traceback, and nothing is left, not even daemons."""
    line = "trap '' TERM INT HUP; setsid sleep 600 & sleep 600"
    running = on_lab.start("exec", "--cluster", "lab", "--", line)
    running.until(
        lambda: all(len(lab[name].processes("sleep\x00600")) == 2 for name in NODES),
        "the command on every host",
    )
    running.send()
    done = running.wait()
    assert done.code == 130, done
    assert "Traceback" not in done.err
    wait_until(lambda: not lab.leftovers(), "the hosts to be idle")


def test_a_host_out_of_reach_is_exit_3(lab: Lab, on_lab: Launcher) -> None:
    """It is named with what to change, and nothing is done on the others either."""
    words = ["--cluster", "lab", "--set", "cluster.nodes.node2.port=23"]
    done = on_lab("exec", *words, "--", "touch", "/tmp/ran")
    assert (done.code, done.out) == (3, ""), done
    assert done.err.count("error: ") == 1
    assert re.search(r"^error: node2: .*refused", done.err, re.MULTILINE), done
    for name in NODES:
        assert lab[name].sh("ls -A /tmp/ran ~/.runner 2>/dev/null || true") == ""


def test_the_configuration_composes_again(on_lab: Launcher) -> None:
    """What `config` prints, used as the primary file, means the same; so does a part of it."""
    words = ("cluster=lab", "task=env", "cluster.env.A=${oc.env:HOME}", "run_id=one")
    first = on_lab.succeed("config", *words)
    head = (
        "defaults: [runner_base, cluster: base, task: base, _self_,"
        " override hydra/hydra_logging: none, override hydra/job_logging: none]\n"
    )
    again = on_lab.folder / "again"
    (again / "cluster").mkdir(parents=True)
    (again / "runner.yaml").write_text(head + first.out)
    second = on_lab("config", "--config-dir", "again")
    assert (second.code, second.out) == (0, first.out), second
    (again / "runner.yaml").unlink()
    part = on_lab("config", "cluster", *words)
    assert yaml.safe_load(part.out) == yaml.safe_load(first.out)["cluster"]
    (again / "cluster" / "part.yaml").write_text(f"defaults: [base]\n{part.out}")
    flags = ("--config-dir=again", "--json", "--resolve")
    third = json.loads(on_lab("config", "cluster", "cluster=part", *flags).out)
    assert third["env"] == {"A": on_lab.env["HOME"]}
    assert third["nodes"] == yaml.safe_load(part.out)["nodes"]


def test_help_and_list_name_every_verb(launcher: Launcher) -> None:
    """In the repository itself, `fab -l` has all of them; it has errors of its own."""
    env = {**launcher.env, "PYTHONPATH": ""}
    with closing(Controller([FAB, "-l", "-F", "json"], ROOT, env)) as controller:
        listed = json.loads(controller.wait().out)["tasks"]
    assert sorted(each["name"] for each in listed) == VERBS
    assert all(each["help"] for each in listed)
    (launcher.folder / "fabfile.py").write_text("from runner.fab import *\n")
    refused = launcher.fab("exec", "--cluster", "nope", "--command", "ls")
    assert (refused.code, refused.out) == (2, ""), refused
    assert refused.err.startswith("error: cluster=nope: Could not find 'cluster/nope'; ")
