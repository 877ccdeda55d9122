"""Where values come from, as `explain` prints it, and the configuration as YAML."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from runner.config.compose import Composer
from runner.config.explain import value_below
from runner.config.source import dump, parse
from tests.golden.conftest import Check
from tests.golden.here import Here

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
    "conf/task/t.yaml": (
        "defaults: [base]\nscript: t.py\nargs: {token: 'x${oc.env:TOKEN}', list: [1, 2]}\n"
    ),
    "conf/task/u.yaml": "defaults: [t]\nargs: {home: '${oc.env:NOT_THERE_1}'}\nenv: ${.args}\n",
    "conf/task/all.yaml": "# @package _global_\nlost_s: 60\ntask: {script: g.py}\n",
}


LAB = "cluster=lab task=t"
ASKED = [
    "cluster.python task=t cluster=mine cluster.python=a ++cluster.python=b",
    "cluster.workdir task=t cluster=mine",
    "cluster.host_python task=t cluster=mine",
    "cluster.python task=t cluster=first",
    "run_dir task=t",
    "lost_s task=t",
    "lost_s task=all",
    "task.args.list.1 task=t",
    "task.args.home task=u",
    "task.args.token task=t",
    "task.args.token task=t cluster.secrets=[TOKEN]",
    f"'cluster.nodes.gpu[01-16].gpus' {LAB}",
    f"cluster.nodes.gpu02.gpus {LAB}",
    f"cluster.nodes.gpu05.gpus {LAB}",
    f"cluster.nodes.gpu05.gpus {LAB} cluster.nodes.gpu05.gpus=1",
    f"cluster.nodes.gpu05.env.C {LAB}",
    f"cluster.nodes.gpu07.gpus {LAB}",
    f"cluster.pyhton {LAB}",
    f"cluster.nodes.gpu21 {LAB}",
    f"cluster.python.x {LAB}",
    f"cluster.env.A {LAB} ~cluster.env.A",
]


def test_each_value_is_explained(
    here: Here, check_screen: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all that set it, the winner first; of a node by all entries that name it."""
    monkeypatch.setenv("TOKEN", "hunter2")
    monkeypatch.setenv("COLUMNS", "100")
    here.write(FILES)
    page = []
    for line in ASKED:
        said = here("explain", *shlex.split(line))
        assert bool(said.err) == bool(said.code), said
        page.append(f"$ runner explain {line}\n{said.out}{said.err}")
    check_screen("explain.txt", "\n".join(page))


def test_the_configuration_as_yaml(
    composer_of: Callable[[Mapping[str, str]], Composer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Hydra's part; what the environment says is in it only on demand."""
    monkeypatch.setenv("TOKEN", "hunter2")
    composer = composer_of(FILES)
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
