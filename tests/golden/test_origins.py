"""Origins of values: the setting that won, and those it overrides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from runner.config.compose import Composer
from runner.config.explain import origins, value_below
from runner.config.source import dump, parse
from runner.core.errors import ConfigError
from runner.core.model.results import Origin

FILES = {
    "conf/cluster/lab.yaml": (
        "defaults: [base]\n"
        "python: /lab/python\n"
        "gpus_per_node: 8\n"
        "ssh: {user: lab}\n"
        "env: {A: 1, B: 2}\n"
        "nodes:\n"
        "  gpu[01-16]: {gpus: 4, user: null}\n"
        "  gpu05:\n"
        "    gpus: 6\n"
        "    env: {C: 3}\n"
        "  gpu[05-06]: {env: {C: null}, transport: null}\n"
        "  gpu20: {}\n"
        "  gpu07:\n"
        "  '7': {port: 7}\n"
    ),
    "conf/cluster/mine.yaml": (
        "defaults: [lab]\n\npython: /mine/python\nenv:\n  B: 20\nworkdir: /${.python}/w\n"
    ),
    "conf/cluster/first.yaml": "defaults: [_self_, lab]\npython: /first/python\nworkdir: /first\n",
    "conf/cluster/local.yaml": "defaults: [base]\nnodes: {own: {}}\n",
    "conf/task/t.yaml": (
        "defaults: [base]\nscript: t.py\nargs: {token: 'x${oc.env:TOKEN}', list: [1, 2]}\n"
    ),
    "conf/task/u.yaml": "defaults: [t]\nargs: {home: '${oc.env:NOT_THERE_1}'}\nenv: ${.args}\n",
    "conf/task/all.yaml": "# @package _global_\nlost_s: 60\ntask: {script: g.py}\n",
}


@pytest.fixture
def composer(composer_of: Callable[[Mapping[str, str]], Composer]) -> Composer:
    return composer_of(FILES)


@pytest.fixture
def one(composer: Composer) -> Callable[..., Origin]:
    """Return the origin of one key under words of the command line."""

    def ask(key: str, *words: str) -> Origin:
        task = [] if "task=u" in words else ["task=t"]
        (origin,) = origins(composer, [*task, *words], key)
        assert origin.key == key
        return origin

    return ask


def told(origin: Origin) -> list[str]:
    """Return the places of an origin as one line each."""
    return [
        f"{s.where} says {s.value}" + (f" for {s.key}" if s.key != origin.key else "")
        for s in origin.settings
    ]


def test_the_command_line_a_file_its_parent_and_the_default(one: Callable[..., Origin]) -> None:
    """All that set it, the winner first."""
    origin = one("cluster.python", "cluster=mine", "cluster.python=a", "++cluster.python=b")
    assert (origin.value, origin.written, origin.problem) == ("b", "", "")
    assert told(origin) == [
        "command line: ++cluster.python=b says b",
        "command line: cluster.python=a says a",
        "conf/cluster/mine.yaml:3 says /mine/python",
        "conf/cluster/lab.yaml:2 says /lab/python",
        "default says python3",
    ]


def test_interpolations_are_shown_both_ways(one: Callable[..., Origin]) -> None:
    """What it comes to, and what is written."""
    origin = one("cluster.workdir", "cluster=mine")
    assert (origin.value, origin.written) == ("//mine/python/w", "/${.python}/w")
    origin = one("cluster.host_python", "cluster=mine")
    assert (origin.value, origin.written) == ("/mine/python", "${.python}")
    origin = one("run_dir")
    assert (origin.value, origin.written) == ("runs/RUN_ID", "runs/${run_id}")
    assert one("task.args.list.1").value == "2"
    assert (one("lost_s").value, one("lost_s").written) == ("15.0", "")
    told = "Environment variable 'NOT_THERE_1' not found"
    assert one("task.args.home", "task=u").problem == told


def test_secrets_are_not_shown(one: Callable[..., Origin], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is made of them."""
    monkeypatch.setenv("TOKEN", "hunter2")
    assert one("task.args.token").value == "xhunter2"
    assert one("task.args.token", "cluster.secrets=[TOKEN]").value == "x***"


def test_an_entry_of_a_range(one: Callable[..., Origin]) -> None:
    """As it stands in the file; what it says holds for each of its nodes."""
    origin = one("cluster.nodes.gpu[01-16].gpus", "cluster=lab")
    assert (origin.value, told(origin)) == ("4", ["conf/cluster/lab.yaml:7 says 4"])


def test_a_node_of_a_range(one: Callable[..., Origin]) -> None:
    """By all entries that name it: a word wins, then the last entry, whatever its file."""
    origin = one("cluster.nodes.gpu02.gpus", "cluster=lab")
    of_range = "conf/cluster/lab.yaml:7 says 4 for cluster.nodes.gpu[01-16].gpus"
    assert (origin.value, told(origin)) == ("4", [of_range])
    origin = one("cluster.nodes.gpu05.gpus", "cluster=lab")
    assert (origin.value, told(origin)) == ("6", ["conf/cluster/lab.yaml:9 says 6", of_range])
    word = "cluster.nodes.gpu05.gpus=1"
    origin = one("cluster.nodes.gpu05.gpus", "cluster=lab", word)
    assert (origin.value, told(origin)[0]) == ("1", f"command line: {word} says 1")
    origin = one("cluster.nodes.gpu05.env.C", "cluster=lab")
    assert (origin.value, len(origin.settings)) == ("null", 2)
    assert one("cluster.nodes.gpu07.gpus", "cluster=lab").value == "4", "its own entry is empty"


@pytest.mark.parametrize(
    ("key", "words", "wanted"),
    [
        ("cluster.pyhton", [], "did you mean cluster.python?"),
        ("cluster.nodes.gpu21", [], "cluster.nodes.gpu21: there is no node gpu21; the entries are"),
        ("cluster.python.x", [], "there is nothing below cluster.python"),
        ("cluster.env.A", ["~cluster.env.A"], "cluster.env.A: there is no such key"),
    ],
)
def test_keys_that_do_not_exist(
    key: str, words: list[str], wanted: str, composer: Composer
) -> None:
    """The nearest ones are named, or who took it away."""
    with pytest.raises(ConfigError) as caught:
        origins(composer, ["cluster=lab", "task=t", *words], key)
    (problem,) = caught.value.problems
    assert wanted in str(problem)


def test_the_configuration_as_yaml(composer: Composer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Hydra's part; what the environment says is in it only on demand."""
    monkeypatch.setenv("TOKEN", "hunter2")
    words = ["cluster=mine", "task=t", "task.args.text=1e3"]
    whole = composer.plain(words, is_resolved=False)
    assert list(whole)[:3] == ["run_id", "cluster", "task"]
    assert "hydra" not in whole
    assert (whole["task"]["args"]["token"], whole["run_id"]) == ("x${oc.env:TOKEN}", None)
    assert value_below(whole, "cluster.python") == "/mine/python"
    resolved = composer.plain(words, is_resolved=True)
    assert value_below(resolved, "cluster.host_python") == "/mine/python"
    text = dump(value_below(resolved, "task.args"))
    assert text == "token: xhunter2\nlist:\n- 1\n- 2\ntext: 1e3\n"
    assert parse(text, Path("x")).content == value_below(resolved, "task.args")
