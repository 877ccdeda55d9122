"""Words of the command line: each value is what was typed, and a sweep is split at its commas."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runner.config.words import (
    as_word,
    is_override,
    runs_of_sweep,
    split_values,
    value_of,
)
from runner.core.errors import ConfigError


@pytest.mark.promise(14)
def test_a_text_is_what_was_typed() -> None:
    """Alone, in a list and in a mapping."""
    texts = "2024_11_05 16:9 3.10 0123 12e5 off yes 0x1F .5 ~/d a=b c: é nUll tRue"
    for text in texts.split():
        assert value_of(f"task.args.x={text}") == text
        assert value_of(f"task.args.x=[{text},{text}]") == [text, text]
        assert value_of(f"task.args={{x:{text}}}") == {"x": text}


def test_several_values_are_a_sweep() -> None:
    """Each as it was typed; alone, they are refused with the forms of a list and of one text."""
    words = ["task.args.lr=0.10,1e-3", "task.args.s=[1,2],[3]", "task.args.t='a,b',c", "~task.env"]
    assert len(runs_of_sweep(words)) == 8
    assert runs_of_sweep(words)[5] == [
        "task.args.lr=1e-3",
        "task.args.s=[1,2]",
        "task.args.t=c",
        "~task.env",
    ]
    assert runs_of_sweep(["task.args.n=range(1,3)"]) == [["task.args.n=1"], ["task.args.n=2"]]
    with pytest.raises(ConfigError, match=r"task.args.lr=\[1,2\]"):
        value_of("task.args.lr=1,2")


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


def test_a_value_that_cannot_be_read_is_refused() -> None:
    """A bracket that is open, nothing between commas, a mapping without a value."""
    said = {"[a": "do not match", "[a,,b]": "an item is missing", "{a}": "a is no NAME:VALUE"}
    for text, why in said.items():
        with pytest.raises(ConfigError, match=why):
            value_of(f"task.args.x={text}")
