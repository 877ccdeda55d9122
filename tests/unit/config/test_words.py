"""Words: those that were typed are values, and arguments of a task are words of its program."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from runner.config.arguments import render, take_words, words_of
from runner.config.kinds import Problems
from runner.config.words import (
    as_word,
    hydra_value,
    is_override,
    literal,
    split_values,
    value_of,
)
from runner.core.errors import ConfigError
from runner.core.spec import Task
from tests.golden.test_specs import problems_of, spec_of


@pytest.mark.promise(14)
def test_a_text_is_what_was_typed() -> None:
    """Alone, in a list and in a mapping."""
    texts = "2024_11_05 16:9 3.10 0123 12e5 off yes 0x1F .5 ~/d a=b c: é nUll tRue"
    for text in texts.split():
        assert value_of(f"task.args.x={text}") == text
        assert value_of(f"task.args.x=[{text},{text}]") == [text, text]
        assert value_of(f"task.args={{x:{text}}}") == {"x": text}


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


@given(st.lists(WORD | st.text("\\${}a.", max_size=6) | st.just("???"), max_size=3))
def test_words_for_the_program_are_taken_as_they_are(words: list[str]) -> None:
    """Through the grammar of overrides and the interpolations of OmegaConf."""
    value = ["first", *literal(words)]
    for read in (value, value_of(f"words={hydra_value(value)}")):
        config = OmegaConf.create({"words": read})
        assert OmegaConf.to_container(config, resolve=True) == {"words": ["first", *words]}
    assert spec_of({"task.args_after": words}).task.words[-len(words) or 9 :] == tuple(words)


@given(st.lists(WORD | FLAG, max_size=4), st.sampled_from(["argparse", "equals", "hydra"]))
def test_words_after_two_dashes_reach_the_program(words: list[str], style: str) -> None:
    """In every style, whatever they are."""
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
