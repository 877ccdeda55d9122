"""The hosts of a verb: those that it asks, and the exit code that they make."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.control.record.run_index import state_folder
from runner.control.record.run_store import RunStore
from runner.control.rpc.wait import NO_ANSWER
from runner.control.run.found_run import FoundRun
from runner.core.errors import ConfigError, Problem
from runner.core.results import CommandResult
from runner.core.spec import Node
from runner.verbs.exec import exit_code
from runner.verbs.shared.selection import Selection
from runner.verbs.stop import _kill_leftovers
from tests.golden.builders import plan, request

CONFIG = """
run_id: first
cluster: {nodes: {a: {host: 10.0.0.1}}, workdir: /there, ssh: {user: ada}}
task: {command: "true"}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which the run `first` was launched, on a cluster whose YAML is gone."""
    folder = tmp_path / "project"
    (folder / "conf" / "cluster").mkdir(parents=True)
    (folder / "conf" / "cluster" / "mine.yaml").write_text("defaults: [base]\nnodes: {b: {}}\n")
    monkeypatch.chdir(folder)
    store = RunStore(folder / "runs" / "first")
    asked = request(store.folder, CONFIG, cluster="gone", workdir="/there")
    nodes = (Node("a", "10.0.0.1"),)
    asked = replace(asked, spec=replace(asked.spec, nodes=nodes))
    store.create(asked, replace(plan(1), run_id="first", cluster="gone"))
    store.unlock()
    return folder


@pytest.mark.parametrize("run", ["first", "latest", ""])
def test_a_run_on_record_is_reached_by_its_record(
    project: Path, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No YAML is read, and what is printed next is its id alone."""
    (project / "conf" / "runner.yaml").write_text("no: [yaml")
    found = Selection().contact_for_run(run)
    assert (found.spec.run_id, found.spec.cluster.name) == ("first", "gone")
    assert found.spec.cluster.workdir == "/there"
    assert found.run_flags("first") == "--run first"
    assert capsys.readouterr().err == ""


def test_words_change_what_is_on_record(project: Path) -> None:
    """All else is as recorded; the words are kept for what is printed next."""
    moved = "cluster.nodes.a.host=10.0.0.9"
    found = Selection(settings=(moved,)).contact_for_run("first")
    assert [(node.name, node.host) for node in found.spec.nodes] == [("a", "10.0.0.9")]
    assert (found.spec.run_id, found.spec.cluster.ssh.user) == ("first", "ada")
    assert found.run_dir == project / "runs" / "first"
    assert moved in found.run_flags("first")


def test_words_change_nothing_of_a_run_that_was_pulled(project: Path) -> None:
    """Its configuration is what hosts say."""
    (project / "runs" / "first" / "overrides.yaml").unlink()
    with pytest.raises(ConfigError, match="first was not launched here.*\n.*--cluster NAME"):
        Selection(settings=("lost_s=3",), verb="logs").contact_for_run("first")
    assert Selection().contact_for_run("first").spec.run_id == "first"


def test_a_cluster_that_is_named_wins(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its YAML of now says where the run is looked for; without an id it is the latest there."""
    assert project.is_dir()
    for run, run_id in (("first", "first"), ("", ""), ("latest", "")):
        found = Selection(("cluster=mine",)).contact_for_run(run)
        assert [node.name for node in found.spec.nodes] == ["b"]
        assert found.spec.run_id == run_id
        assert found.run_flags("x") == "--run x --cluster mine"
    assert capsys.readouterr().err == ""


def test_which_hosts_are_asked_is_said_once(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who asks for JSON is no person: nothing is said, and nothing counts as said."""
    assert project.is_dir()
    said = state_folder() / "said.json"
    with monkeypatch.context() as typed:
        typed.setattr("sys.argv", ["runner", "ps", "--json"])
        Selection().contact_latest()
    assert (capsys.readouterr().err, said.exists()) == ("", False)
    Selection().contact_latest()
    assert (
        capsys.readouterr().err
        == "note: on gone (a), as in the last run; --cluster NAME chooses another\n"
    )
    Selection().contact_latest()
    assert capsys.readouterr().err == ""


def test_a_host_that_answers_pings_alone_is_awaited_once() -> None:
    """Not again after it was asked about the run; one that follows the run by now is asked."""
    asked: set[str] = set()

    def broadcast(names: set[str]) -> Any:
        asked.update(names)
        replies: dict[str, dict[str, list[int]]] = {name: {"survivors": []} for name in names}
        return SimpleNamespace(collect=lambda *_: (replies, {}))

    unreachable = {"b": Problem("b", NO_ANSWER), "c": Problem("c", NO_ANSWER)}
    run = SimpleNamespace(
        finder=SimpleNamespace(unreachable=unreachable, pool=SimpleNamespace(broadcast=broadcast)),
        all_nodes=("a", "b", "c"),
        reported=SimpleNamespace(by_host={}),
        plan=SimpleNamespace(run_id="run"),
    )
    left = _kill_leftovers(cast("FoundRun", run), unfollowed={"b"})
    assert asked == {"a", "c"}
    assert left == {"a": 0, "b": NO_ANSWER, "c": 0}


def answer(code: int | None = 0, problem: str = "") -> CommandResult:
    return CommandResult("a", code, bytearray(), bytearray(), problem)


LOST = replace(answer(None, "lost: x"), lost=True)
LEFT = replace(answer(-9, "cannot be killed: PID 7"), unverified=True)


@pytest.mark.parametrize(
    ("given", "signum", "code"),
    [
        ([answer(), answer()], 0, 0),
        ([answer(-9), answer(7)], 0, 137),
        ([answer(None, "cannot be started: x")], 0, 127),
        ([answer(7), LOST], 0, 4),
        ([answer(7), answer(None, "lost, says the host itself")], 0, 127),
        ([LEFT, LOST], 0, 5),
        ([answer(-9)], signal.SIGINT, 130),
        ([answer(-9), replace(LOST, unverified=True)], signal.SIGINT, 5),
    ],
)
def test_worst_host_decides_the_exit_code(
    given: list[CommandResult], signum: int, code: int
) -> None:
    """A script sees whether it may go on; what may be left somewhere is 5, and beats all."""
    assert exit_code(given, signum) == code
