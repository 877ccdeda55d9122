"""The task: its arguments become words with the same values."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from runner.config.arguments import render, take_words
from runner.config.arguments import words_of as words_of_task
from runner.config.kinds import Problems
from runner.config.words import hydra_value, literal, value_of
from runner.core.errors import ConfigError
from runner.core.spec import Task
from tests.golden.test_specs import problems_of, spec_of

PLAIN = {"task.entry": "plain"}
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
# As a value, `--` alone is lost in argparse itself before Python 3.13.
WORD = TEXT.filter(lambda text: text != "--") | st.sampled_from(
    ["-1", "-x", "--lr=1", "$HOME", "a b"]
)
FLAG = st.from_regex(r"--?[a-z.\[\]0-9-]{1,4}(=[a-z])?", fullmatch=True)
NUMBER = st.integers() | st.floats(allow_nan=False, allow_infinity=False)


def words_of(args: object, style: str = "argparse") -> list[str]:
    problems = Problems()
    words = render(problems, args, Task(args_style=style))
    assert problems == []
    return words


@given(
    text=WORD,
    number=NUMBER,
    texts=st.lists(WORD.filter(lambda t: not t.startswith("-")), min_size=1),
)
def test_argparse_reads_back_what_was_asked(text: str, number: float, texts: list[str]) -> None:
    """Any text and number arrives, whatever it begins with and holds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--text")
    parser.add_argument("--number", type=float)
    parser.add_argument("--texts", nargs="*")
    parser.add_argument("--numbers", type=float, nargs="*")
    parser.add_argument("--flag", action="store_true")
    args = {
        "texts": texts,
        "flag": True,
        "number": number,
        "text": text,
        "numbers": [abs(number), 1],
    }
    read = parser.parse_args(words_of(args))
    assert (read.text, read.texts, read.flag) == (text, texts, True)
    assert read.number == pytest.approx(number, rel=1e-12)
    assert read.numbers == pytest.approx([abs(number), 1], rel=1e-12)


@given(
    st.recursive(
        TEXT
        | NUMBER
        | st.booleans()
        | st.none()
        | st.sampled_from(["nan", "1e3", "a:b", "\\", '"']),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.from_regex(r"k[a-z0-9_]{0,4}", fullmatch=True), inner, max_size=3)
        ),
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
    config = OmegaConf.create({"task": {"script": "t.py", "args_style": style, "args": {}}})
    try:
        take_words(config, [], words)
    except ConfigError as error:
        assert "comes after the program" in str(error)  # noqa: PT017
        return
    made: Any = OmegaConf.to_container(config.task, resolve=True)
    problems = Problems()
    made["args_after"] = tuple(made.get("args_after", ()))
    assert words_of_task(problems, Task(kind="script", **made)) == ("t.py", tuple(words))
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
