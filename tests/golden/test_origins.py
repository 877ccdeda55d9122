"""Where values come from, as `explain` prints it, and the configuration as YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from runner.config.compose import Composer
from runner.config.explain import value_below
from runner.config.source import dump, parse
from tests.golden.conftest import Replay
from tests.golden.here import Here


def test_each_value_is_explained(
    here: Here, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all that set it, the winner first; of a node by all entries that name it."""
    monkeypatch.setenv("TOKEN", "hunter2")
    monkeypatch.setenv("COLUMNS", "100")

    def explained(words: list[str]) -> str:
        said = here(*words)
        assert bool(said.err) == bool(said.code), said
        return f"{said.out}{said.err}"

    replay("explain.txt", explained)


def test_the_configuration_as_yaml(
    composer_of: Callable[[Mapping[str, str]], Composer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Hydra's part; what the environment says is in it only on demand."""
    monkeypatch.setenv("TOKEN", "hunter2")
    base = "defaults: [base]\n"
    files = {
        "conf/cluster/mine.yaml": f"{base}python: /mine/python\n",
        "conf/task/t.yaml": f"{base}args: {{token: 'x${{oc.env:TOKEN}}', list: [1, 2]}}\n",
    }
    composer = composer_of(files)
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
