"""The words of a verb: flags, overrides as a launch takes them, and one subject."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner import verbs
from runner.cli.command import load_verb, verb_names
from runner.cli.main import _VerbParser, is_override, main
from runner.core.errors import ConfigError

CLUSTER = """\
defaults: [base]
transport: local
nodes: {gpu-01: {}, my-box: {}}
env: {A: "1"}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder whose nodes have hyphens."""
    for name, text in {
        "cluster/hy.yaml": CLUSTER,
        "task/mine.yaml": "defaults: [base]\nscript: train.py\nargs: {lr: 0.1, steps: 3}\n",
    }.items():
        file = tmp_path / "conf" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def values(name: str, *words: str) -> dict[str, Any]:
    """What a verb's function is given for these words."""
    return _VerbParser(load_verb(name)).values(words)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `python -m runner WORDS` prints; it succeeds."""
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "word",
    [
        *("a=1", "cluster.nodes.my-box.host=10.0.0.5", "~task.args.lr", "+a.b=1", "++a=b c"),
        *("~cluster", "hydra/job_logging=none", "task@x=y", "a="),
    ],
)
def test_an_override_is_one_in_verbs_as_in_launches(word: str) -> None:
    """Anything with a key and `=`, and anything that begins with ~ or +."""
    assert is_override(word)
    assert values("config", word, "--set", "b=2")["set_"] == ["b=2", word]
    assert values("explain", "task", word)["set_"] == [word]


@pytest.mark.parametrize("word", ["latest", "train.py", "echo a=b", "-x=1", "--set=a=1"])
def test_other_words_are_no_overrides(word: str) -> None:
    """Such as lines of shell, and flags."""
    assert not is_override(word)


def test_nodes_with_a_hyphen_take_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    """In a launch, and in every verb."""
    words = ("cluster=hy", "task=mine", "cluster.nodes.my-box.addr=10.0.0.5")
    plan = printed(capsys, *words, "dry_run=offline")
    assert "meeting at " in plan
    nodes = json.loads(printed(capsys, "config", *words, "--key", "cluster.nodes", "--json"))
    assert nodes == {"gpu-01": {}, "my-box": {"addr": "10.0.0.5"}}
    origin = printed(capsys, "explain", "cluster.nodes.my-box.addr", *words)
    assert origin.startswith("cluster.nodes.my-box.addr: 10.0.0.5\n")


def test_a_key_can_be_taken_out(capsys: pytest.CaptureFixture[str]) -> None:
    """As the first word, in a verb, and for a whole part of the schema: its default holds."""
    words = ("cluster=hy", "task=mine", "dry_run=offline")
    assert " --steps 3\n" in printed(capsys, "~task.args.lr", *words)
    assert "--lr" not in printed(capsys, "~task.args.lr", *words)
    assert printed(capsys, "config", "task.args", "~task.args.lr", *words) == "steps: 3\n"
    assert "train.py\n" in printed(capsys, "~task.args", *words)
    for key in ("cluster.env", "cluster.host_python", "watch", "detach", "run_dir"):
        assert "train.py" in printed(capsys, f"~{key}", *words), key


def test_flags_stand_anywhere_and_once() -> None:
    """Switches and repeatable flags may come again; a word of its own is the subject."""
    given = values("logs", "--rank", "1", "0101-1200-x-abcd", "--rank=2,3", "--follow", "a=1")
    assert (given["rank"], given["run"], given["follow"]) == (
        ["1", "2,3"],
        "0101-1200-x-abcd",
        True,
    )
    assert (given["set_"], given["node"], given["cluster"]) == (["a=1"], "", "")
    with pytest.raises(ConfigError) as error:
        values("logs", "--run", "a", "--run", "b")
    assert error.value.problems[0].message == "--run is given twice"
    with pytest.raises(ConfigError) as error:
        values("ps", "--clster", "x")
    assert error.value.problems[0].hint.startswith("did you mean --cluster?\n")


def test_a_line_of_shell_is_the_command() -> None:
    """Also one that sets a variable first; a setting whose value has spaces is none."""
    assert values("exec", "A=1 env", "cluster.setup=[a b]") == {
        **dict.fromkeys(("cluster",), ""),
        **{"set_": ["cluster.setup=[a b]"], "config_dir": [], "command": "A=1 env"},
        **{"timeout": "10m", "json_": False},
    }


def test_fab_has_the_same_flags() -> None:
    """Each verb is an Invoke task with the flags of its declaration."""
    assert {task.name for task in verbs.TASKS.values()} == set(verb_names())
    for task in verbs.TASKS.values():
        options = load_verb(task.name).options
        assert {arg.name for arg in task.get_arguments()} == {o.name for o in options}
