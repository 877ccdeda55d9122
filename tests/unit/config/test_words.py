"""Texts of files and words: they are values as written, and arguments are words of a program."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from runner.config.arguments import render, take_words, words_of
from runner.config.kinds import Problems
from runner.config.source import dump, parse
from runner.config.words import (
    as_word,
    hydra_value,
    is_override,
    split_values,
    value_of,
)
from runner.core.errors import ConfigError
from runner.core.spec import Task
from tests.golden.test_specs import problems_of


def read(text: str) -> dict[str, Any]:
    return parse(text, Path("/conf/task/t.yaml")).content


@pytest.mark.promise(14)
def test_a_text_is_what_was_written() -> None:
    """In a file, or typed: alone, in a list and in a mapping. true, false and null have a meaning.

    Quotes make texts of them; in `env` the bools are texts, too.
    """
    texts = "2024_11_05 16:9 3.10 0123 12e5 1234567e8 off on yes no y 0x1F .5 1_0 2024-11-05 .inf ="
    for text in [*texts.split(), "~/d", "a=b", "é", "nUll", "tRue"]:
        assert read(f"x: [{text}]") == {"x": [text]}
        assert value_of(f"task.args.x={text}") == text
        assert value_of(f"task.args.x=[{text},{text}]") == [text, text]
        assert value_of(f"task.args={{x:{text}}}") == {"x": text}
    assert read("x: [true, False, null, ~, ]") == {"x": [True, False, None, None]}
    assert read("x: ['true', \"null\", '~', '']") == {"x": ["true", "null", "~", ""]}
    assert read("env: {A: true, C: null}") == {"env": {"A": "true", "C": None}}
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


def test_keys_may_be_merged_and_stand_once() -> None:
    """By anchors; what is written beside `<<` wins."""
    text = "a: &a {x: 1, y: 2}\nb: &b {z: 3}\nc: {<<: [*a, *b], y: 4}"
    assert read(text)["c"] == {"x": "1", "y": "4", "z": "3"}
    with pytest.raises(ConfigError, match="maximum recursion depth"):
        read("a: &x {b: *x}")


@given(st.lists(st.text("ab,[]{}'\" ", max_size=5), min_size=1))
def test_a_split_loses_nothing(parts: list[str]) -> None:
    """Whatever stands between the commas."""
    text = ",".join(parts)
    assert ",".join(split_values(text)) == text


@example(["\\", None])
@example("NULL")
@example("True")
@given(st.recursive(st.text() | st.none() | st.booleans(), st.lists, max_leaves=4))
def test_a_word_that_is_printed_sets_that_value(value: object) -> None:
    """As of `rerun` and the next steps."""
    assert value_of(as_word("task.args.x", value)) == value


def test_what_is_meant_as_an_override() -> None:
    """Legal or not; a path, a flag and a line of shell are none."""
    meant = ["a=1", "+a=1", "++a", "~a", "~a=1", "task@x=y"]
    others = ["a b", "=x", "-x=1", "--x=1", "~u/x", "train.py", "echo a=b", "latest"]
    assert [word for word in (*meant, *others) if is_override(word)] == meant


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
# As a value, `--` alone is lost in argparse itself before Python 3.13.
WORD = TEXT.filter(lambda text: text != "--") | st.sampled_from(
    ["-1", "-x", "--lr=1", "$HOME", "a b"]
)
FLAG = st.from_regex(r"--?[a-z.\[\]0-9-]{1,4}(=[a-z])?", fullmatch=True)


@given(text=WORD, texts=st.lists(WORD.filter(lambda t: not t.startswith("-")), min_size=1))
def test_argparse_reads_back_what_was_asked(text: str, texts: list[str]) -> None:
    """Any text arrives, whatever it begins with and holds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--text")
    parser.add_argument("--texts", nargs="*")
    parser.add_argument("--flag", action="store_true")
    problems = Problems()
    words = render(problems, {"texts": texts, "flag": True, "text": text}, Task())
    assert problems == []
    read = parser.parse_args(words)
    assert (read.text, read.texts, read.flag) == (text, texts, True)


@given(
    st.recursive(
        TEXT | st.booleans() | st.none() | st.sampled_from(["nan", "1e3", "a:b", "\\", '"']),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["k", "k_1"]), inner),
        max_leaves=5,
    )
)
def test_hydra_reads_back_what_was_asked(value: Any) -> None:
    """Hydra's own parser finds the same value and the same type."""
    override = OverridesParser.create().parse_override(f"key={hydra_value(value)}")
    assert not override.is_sweep_override()
    assert override.value() == value
    assert type(override.value()) is type(value)


@given(
    st.lists(WORD | FLAG | st.text("\\${}a.") | st.just("???"), max_size=4),
    st.sampled_from(["argparse", "equals", "hydra"]),
)
def test_words_after_two_dashes_reach_the_program(words: list[str], style: str) -> None:
    """In every style, whatever they are, through the interpolations of OmegaConf."""
    task: dict[str, Any] = {"script": "t.py", "args_style": style, "args": {}}
    try:
        take_words(task, [], words)
    except ConfigError as error:
        assert "comes after the program" in str(error)  # noqa: PT017
        return
    made: Any = OmegaConf.to_container(OmegaConf.create(task), resolve=True)
    problems = Problems()
    made["args_after"] = tuple(made.get("args_after", ()))
    assert words_of(problems, Task(kind="script", **made)) == ("t.py", tuple(words))
    assert problems == []


@pytest.mark.parametrize(
    "line",
    ["t && u", "t > log", "t\nu", "A=1 t", "cd x", "$HOME/t", "t ~", 't "it\'s $A"', 't "`u`"'],
)
def test_a_shell_line_is_refused_with_the_form_that_works(line: str) -> None:
    """What is printed is bash with this line, as YAML if it is several."""
    (problem,) = problems_of({"task.script": None, "task.command": line})
    hint = problem.partition("\n")[2].strip()
    if "\n" in line:
        made = OmegaConf.create(hint.removeprefix("in YAML: "))
    else:
        made = OmegaConf.create({"command": value_of(shlex.split(hint)[0])})
    assert OmegaConf.to_container(made, resolve=True) == {"command": ["bash", "-c", line]}
