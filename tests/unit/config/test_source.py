"""Files of YAML: what is read of them, and where each mistake stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runner.config.compose import open_composer
from runner.config.source import ConfigFiles, YamlSource, dump, parse
from runner.core.errors import ConfigError

FILE = Path("/conf/task/t.yaml")


def read(text: str) -> dict[str, Any]:
    return parse(text, FILE).content


@pytest.mark.promise(14)
def test_scalars_are_texts_as_they_were_written() -> None:
    """But for true, false and null, which quotes make texts; in `env` the bools are texts, too."""
    texts = "2024_11_05 16:9 3.10 0123 12e5 1234567e8 off on yes no y 0x1F .5 1_0 2024-11-05 .inf ="
    assert read(f"x: [{', '.join(texts.split())}]") == {"x": texts.split()}
    assert read("x: [true, False, null, ~, ]") == {"x": [True, False, None, None]}
    assert read("x: ['true', \"null\", '~', '']") == {"x": ["true", "null", "~", ""]}
    assert read("env: {A: true, B: False, C: null}") == {
        "env": {"A": "true", "B": "False", "C": None}
    }
    assert read("01: {no: 1}") == {"01": {"no": "1"}}


@given(
    st.recursive(
        st.text() | st.booleans() | st.none() | st.sampled_from(["true", "~", "0x1", "=", "<<"]),
        lambda inner: st.lists(inner) | st.dictionaries(st.from_regex(r"k\w{0,3}\Z"), inner),
        max_leaves=6,
    )
)
@example("\x85 \u2028 \u2029")
def test_what_is_dumped_is_read_again(value: object) -> None:
    """A record has the values of its run."""
    assert read(dump({"x": value})) == {"x": value}


def test_arguments_have_the_names_of_flags() -> None:
    """As the command line has them, so that words change them; elsewhere a dot is a dot."""
    text = """\
args: {model.lr: 1, model: {depth: 2, opt: {name: x}}, o: y, o.lr: z}
nodes: {n1.lab: {}}"""
    arguments = {"model.lr": "1", "model.depth": "2", "model.opt.name": "x", "o": "y", "o.lr": "z"}
    assert read(text) == {"args": arguments, "nodes": {"n1.lab": {}}}


def test_keys_may_be_merged_and_stand_once() -> None:
    """By anchors; what is written beside `<<` wins."""
    text = "a: &a {x: 1, y: 2}\nb: &b {z: 3}\nc: {<<: [*a, *b], y: 4}"
    assert read(text)["c"] == {"x": "1", "y": "4", "z": "3"}
    with pytest.raises(ConfigError, match="maximum recursion depth"):
        read("a: &x {b: *x}")


def test_a_key_has_its_line() -> None:
    """Also below lists; what is no key has that of the file."""
    file = parse("a:\n  b: 1\n\nc:\n- d: 1\n  e: 2\n", FILE)
    assert [file.place(key) for key in ("a.b", "c.0.e", "x", "")] == [
        "/conf/task/t.yaml:2: a.b",
        "/conf/task/t.yaml:6: c.0.e",
        "/conf/task/t.yaml: x",
        "/conf/task/t.yaml",
    ]


def test_a_file_may_end_in_yml(tmp_path: Path) -> None:
    """It is listed, found and chosen as one in `.yaml`, which wins."""
    (tmp_path / "task").mkdir()
    for name in ("a.yml", "b.yaml", "b.yml", "c.txt"):
        (tmp_path / "task" / name).write_text(f"script: {name}\n")
    files = ConfigFiles([tmp_path])
    YamlSource.files = files
    source = YamlSource("user", "runner://conf")
    assert sorted(files.options("task")) == source.list("task", None) == ["a", "b"]
    loaded = [source.load_config(f"task/{name}.yaml").config for name in ("a", "b")]
    assert loaded == [{"script": "a.yml"}, {"script": "b.yaml"}]


@pytest.mark.parametrize("word", ["true", "True"])
def test_a_program_called_true(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the name that was written, also in a file; as an argument it is a flag."""
    monkeypatch.chdir(tmp_path)
    with open_composer() as composer:
        task = composer.compose([f"task.command={word}", "cluster=local"]).spec.task
    assert (task.name, task.target) == (word, word)
    content = parse(f"command: {word}\nargs: {{command: {word}}}", FILE).content
    assert content == {"command": word, "args": {"command": True}}
