"""A verb about a run goes by the run's own record: not by YAML, environment or folder of now."""

from __future__ import annotations

import getpass
import json
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from tests.lab.forkserver import RUNNER_ARGV
from tests.lab.lab import Lab
from tests.lab.launching import Launcher, Result
from tests.lab.terminal import Terminal
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.promise(10)]

NODES = ("node1", "node2")
SHELL = {"API_KEY": "s3cret", "PASSED": "p", "PLACE": "somewhere"}
"""What is exported where a run is launched, and nowhere else."""


def detached(
    on_lab: Launcher, *words: str, env: Mapping[str, str] | None = None, first: str = "print=up"
) -> Result:
    ranks = on_lab.rank_overrides(first, "sleep=600")
    return on_lab.succeed("detach=true", "grace_s=1", *words, *ranks, env=env)


def at_another_machine(on_lab: Launcher) -> Launcher:
    """The same user at a machine that has launched nothing yet, but has the YAML."""
    laptop = on_lab.at_another_machine("laptop")
    (laptop.folder / "conf").symlink_to(on_lab.conf)
    return laptop


def printed_commands(done: Result) -> list[list[str]]:
    lines = re.findall(r"^ *python -m runner (.*)$", done.err, re.MULTILINE)
    return [line.split() for line in lines]


def test_a_run_needs_nothing_of_what_launched_it(
    lab: Lab, on_lab: Launcher, tmp_path: Path
) -> None:
    """Secrets and variables unset, the YAML gone, other folders everywhere: all verbs find it."""
    extra = tmp_path / "extra"
    file = lab.write_cluster(
        extra,
        "gone",
        names=NODES,
        secrets=["API_KEY"],
        pass_env=["PASSED"],
        env={"PLACE": "${oc.env:PLACE}"},
        workdir="~/${oc.env:PLACE}",
    )
    (extra / "experiment").mkdir()
    text = "# @package _global_\ndefaults: [{override /cluster: gone}]\n"
    (extra / "experiment" / "big.yaml").write_text(text)
    words = ("--config-dir", str(extra), "+experiment=big", f"run_dir={tmp_path}/kept/one")
    done = detached(on_lab, *words, env=SHELL)
    run = done.folder.name
    attach, *_, stop, pull = printed_commands(done)
    assert attach == ["attach", "--run", run], done
    assert "s3cret" not in (tmp_path / "kept" / "one" / "plan.json").read_text()
    file.unlink()
    verbs: dict[str, Callable[[Result], bool]] = {
        f"logs {run}": lambda said: said.out.count("up") == 2,
        "logs": lambda said: said.out.count("up") == 2,
        "logs --run latest": lambda said: said.out.count("up") == 2,
        "stacks": lambda said: said.code == 0,
        "ps": lambda said: (
            run in said.out and "note: on gone (node[1-2]), as in the last run" in said.err
        ),
        "pull": lambda said: "kept/one" in said.out,
    }
    for words_, is_right in verbs.items():
        said = on_lab(*words_.split())
        assert (said.code, is_right(said)) == (0, True), (words_, said)
    not_ended = on_lab("why", "--run", run)
    assert (not_ended.code, f"error: run {run} has not ended" in not_ended.err) == (3, True), (
        not_ended
    )
    assert [attach, ["stacks", *attach[1:]]] == printed_commands(not_ended)
    elsewhere = on_lab.in_folder(tmp_path)
    refused = elsewhere("logs")
    assert (refused.code, "no run was launched from this folder" in refused.err) == (2, True)
    followed = elsewhere.start(*attach)
    followed.until_printed("] up", 2)
    ended = elsewhere.succeed(*stop)
    told = followed.wait()
    who = rf"run {run} stopped after .* by {getpass.getuser()}@{socket.gethostname()}\n"
    assert (told.code, re.search(who, told.err) is not None) == (130, True), told
    assert elsewhere(*pull).code == 0
    assert re.search(rf"^stop: {run}  rank  \d+ s ago  from \S+$", ended.err, re.MULTILINE), ended
    assert ended.out.endswith(f"run {run}: no process is left\n")
    why = on_lab("why", "--run", run)
    assert (why.code, re.search(who, why.out) is not None) == (0, True), why
    again = on_lab("stop", "--run", "latest")
    assert (again.code, "no run launched from this folder is running" in again.err) == (2, True)


def test_latest_is_this_folders_and_stop_takes_one_that_is_on(on_lab: Launcher) -> None:
    """Another project's run is named with its folder, and not ended unasked."""
    first = detached(on_lab, "cluster=lab").folder.name
    ended = on_lab.succeed("cluster=lab", *on_lab.rank_overrides("print=over"))
    other = on_lab.in_folder(on_lab.folder.parent / "other")
    other.folder.mkdir()
    (other.folder / "conf").symlink_to(on_lab.conf)
    theirs = detached(other, "cluster=lab").folder.name
    stopped = on_lab("stop", "--run", "latest", "--json")
    assert (stopped.code, json.loads(stopped.out)["run_id"]) == (0, first), stopped
    result = json.loads((on_lab.folder / "runs" / first / "result.json").read_text())
    assert (result["state"], result["unverified"]) == ("stopped", []), result
    assert "launched from here" not in on_lab("ps", "ui=plain").out  # on the default cluster
    again = rf"^that run had ended:\n  \S.* why  --run {first}\n  \S.* logs --run {first}$"
    said = on_lab("attach", "--run", first)
    assert re.search(again, said.err, re.MULTILINE), said
    listed = json.loads(on_lab("ps", "--cluster", "lab", "--json").out)["runs"]
    assert [row["run_id"] for row in listed] == [theirs]
    assert [row["folder"] for row in listed] == [str(other.folder)]
    # With a cluster named it is the latest of this user at this machine, wherever it was launched.
    named = rf"run {theirs}, task rank, of \S+, launched \d+ s ago from \S*/other$"
    asked_about = rf"{theirs}  rank  \d+ s ago  from \S*/other$"
    for verb in ("logs", "stacks"):
        said = on_lab(verb, "--cluster", "lab")
        note = re.search(f"^note: your latest run there is {named}", said.err, re.MULTILINE)
        assert (said.code, bool(note)) == (0, True), said
    assert "note: your latest" not in other("logs", "--cluster", "lab").err
    last = ("stop", "--cluster", "lab", "--run", "latest", "--json")
    refused = on_lab(*last)
    assert (refused.code, "launched from another folder" in refused.err) == (2, True), refused
    assert re.search(f"^stop: {asked_about}", refused.err, re.MULTILINE), refused
    assert re.search("    --yes is the answer$", refused.err, re.MULTILINE), refused
    ended = on_lab(*last, "--yes")
    assert (ended.code, json.loads(ended.out)["run_id"]) == (0, theirs), ended


@pytest.mark.all
def test_a_run_of_another_machine_is_named_and_asked_about(lab: Lab, on_lab: Launcher) -> None:
    """It is never `latest` there; ending it takes a yes, on a terminal or on the command line."""
    run = detached(on_lab, "cluster=lab").folder.name
    info = lab["node1"].home / ".runner" / "runs" / run / "node1" / "run.json"
    for node in NODES:  # launched by somebody with the same login
        file = lab[node].home / ".runner" / "runs" / run / node / "run.json"
        file.write_text(file.read_text().replace('"launched_by": "', '"launched_by": "ann+'))
    assert "ann+" in info.read_text()
    laptop = at_another_machine(on_lab)
    guessed = laptop("logs", "--cluster", "lab")
    assert (guessed.code, "no run of " in guessed.err) == (3, True), guessed
    found = laptop("logs", run, "--cluster", "lab")
    assert (found.code, found.out.count("up")) == (0, 2), found
    assert laptop("pull", run, "--cluster", "lab").code == 0  # a record of it, not of its launch
    refused = laptop("stop", run, "--cluster", "lab")
    assert refused.code == 2, refused
    assert re.search(rf"{run}  rank  .* ago  of ann\+", refused.err)
    assert "--yes" in refused.err
    argv = [*RUNNER_ARGV, "stop", run, "--cluster", "lab"]
    with closing(Terminal(argv, laptop.folder, laptop.env)) as terminal:
        terminal.until("Type y or n")
        terminal.type("n\n")
        terminal.until("nothing was changed")
        assert terminal.end() == 130
    assert lab["node1"].processes("sleep=600")
    laptop.succeed("stop", run, "--cluster", "lab", "--yes")
    wait_until(lambda: not lab["node1"].processes("sleep=600"), "its end")
    clean = ("clean", "--cluster", "lab", "--older-than", "0s")
    refused = laptop(*clean)
    assert (refused.code, f"{run}  rank  " in refused.err) == (2, True), refused
    assert info.exists()
    cleaned = on_lab(*clean)  # on record here
    named = re.search(rf"^remove: {run}  rank  .* ago  of ann\+", cleaned.err, re.MULTILINE)
    assert (cleaned.code, bool(named)) == (0, True), cleaned
    assert not info.exists()


def test_a_run_is_found_where_a_node_was_renamed(lab: Lab, on_lab: Launcher) -> None:
    """In another YAML, or since: `ps` has the names of now, verbs about the run know its own."""
    machines = {"a": lab["node1"].address, "b": lab["node2"].address}
    nodes = {name: {"host": address} for name, address in machines.items()}
    lab.write_cluster(on_lab.conf, "one", names=[], nodes=nodes)
    renamed = {"a": {"host": machines["a"]}, "c": {"host": machines["b"]}}
    lab.write_cluster(on_lab.conf, "other", names=[], nodes=renamed)
    run = detached(on_lab, "cluster=one", "task.outputs=[x]").folder.name
    laptop = at_another_machine(on_lab)
    there = ("--cluster", "other")
    (row,) = json.loads(laptop("ps", *there, "--json").out)["runs"]
    assert (row["run_id"], row["state"], row["nodes"]) == (run, "running", ["a", "c"])
    for verb in ("logs", f"pull {run}"):
        laptop.succeed(*verb.split(), *there)
    assert {log.name for log in (laptop.folder / "runs" / run / "logs").iterdir()} == {"a", "b"}
    ended = laptop.succeed("stop", run, *there, "--yes")
    assert re.search(r"^ *a,b +0 processes on each$", ended.out, re.MULTILINE), ended
    (row,) = json.loads(laptop("ps", "--all", *there, "--json").out)["runs"]
    assert (row["run_id"], row["state"]) == (run, "stopped")


@pytest.mark.slow
@pytest.mark.promise(4)
def test_a_lost_run_is_lost_for_all_who_ask_and_proven_once_its_host_is_back(
    lab: Lab, on_lab: Launcher
) -> None:
    """The launch's verdict, `why` and `ps` agree; what could not be proven then, is later."""
    ranks = on_lab.rank_overrides("print=up", "sleep=600")
    launch = on_lab.start("cluster=lab", "grace_s=1", "disconnect_s=20", *ranks)
    launch.until_printed("] up", 2)
    lab["node2"].unplug()
    done = launch.wait()
    assert (done.code, done.result["unverified"]) == (4, ["node2"]), done
    assert "first failure: lost node2: nothing was heard from it for" in done.err
    lab["node2"].plug()
    wait_until(lambda: not lab["node2"].processes("sleep=600"), "its supervisor to end it")
    why = on_lab("why", "--run", "latest", "cluster.nodes.node2.port=1")
    assert (why.code, "note: asked again in vain: node2: " in why.err) == (0, True), why
    (row,) = json.loads(on_lab("ps", "--all", "--cluster", "lab", "--json").out)["runs"]
    assert (row["state"], row["nodes"]) == ("lost", [*NODES]), row
    assert done.result["unverified"] == ["node2"]  # a list writes nothing
    why = on_lab("why", "--run", row["run_id"])
    assert (why.code, "run " + row["run_id"] + " lost" in why.out) == (0, True), why
    assert "could not verify" not in why.out
    told = json.loads(on_lab("why", "--run", row["run_id"], "--json").out)
    assert (told["state"], told["exit_code"], told["unverified"]) == ("lost", 4, [])


def test_a_launch_goes_on_without_the_folder_it_was_typed_in(
    on_lab: Launcher, tmp_path: Path
) -> None:
    """Removed before the run begins; what it needs of its own is elsewhere."""
    laptop = on_lab.at_another_machine("laptop")
    words = ("cluster=local", "cluster.project=/", "task.command=pwd", f"run_dir={tmp_path}/run")
    laptop.succeed(*words, f"cluster.setup=['rm -rf {laptop.folder}']")
