"""Files of YAML: what is read of them, and where each mistake stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runner.config.source import dump, parse
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


def test_keys_may_be_merged_and_stand_once() -> None:
    """By anchors; what is written beside `<<` wins."""
    text = "a: &a {x: 1, y: 2}\nb: &b {z: 3}\nc: {<<: [*a, *b], y: 4}"
    assert read(text)["c"] == {"x": "1", "y": "4", "z": "3"}
    with pytest.raises(ConfigError, match="maximum recursion depth"):
        read("a: &x {b: *x}")
