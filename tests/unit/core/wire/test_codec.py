"""Data goes to JSON and comes back the same."""

from __future__ import annotations

import dataclasses
import enum
import json
import types
from collections.abc import Callable, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.outcome.verdict import Verdict
from runner.core.results import NodeResult, PullResult, RankResult
from runner.core.wire.codec import decode, encode
from runner.core.wire.events import EVENT_TYPES, Ended, RankExited
from runner.core.wire.facts import (
    Facts,
    FactsRequest,
    Gpu,
    GpuProcess,
    Interface,
    Interpreter,
    Route,
    SetupResult,
)
from runner.core.wire.order import Order
from runner.core.wire.plan import NodePlan, Plan
from runner.core.wire.states import Reason

DATA = [
    *(Facts, FactsRequest, Interface, Route, Gpu, GpuProcess, Interpreter, SetupResult),
    *(Order, NodePlan, Plan, Verdict, NodeResult, RankResult, Reason),
    *EVENT_TYPES.values(),
]
PARSED = ["10.0.0.1/24", "fe80::/64", "ada", r"epoch (\d+)/(\d+)"]
TEXT = st.text("".join(map(chr, range(256))) + "ß→🙂", max_size=6)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(-(2**63), 2**64),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Return values of a type; collections stay small, since a plan holds orders, and so on."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.none() | values(args[0])
    if origin is tuple:
        return st.lists(values(args[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=2)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        fields = {f.name: field_values(hints[f.name], f.metadata) for f in dataclasses.fields(hint)}
        return st.builds(hint, **fields)
    if issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    return SCALARS[hint]


def legal_for(parser: Callable[[str], object]) -> Callable[[str], bool]:
    """Return whether the parser of a field takes a text, as a function."""

    def is_legal(text: str) -> bool:
        try:
            parser(text)
        except ValueError:
            return False
        return True

    return is_legal


def field_values(hint: Any, metadata: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return values of a field, within its limits."""
    if "bounds" in metadata:
        low, high = metadata["bounds"]
        if get_origin(hint) is tuple:
            return st.lists(st.integers(low, high), max_size=2).map(tuple)
        if get_origin(hint) in (Union, types.UnionType):
            return st.none() | st.integers(low, high)
        return st.integers(low, high) if hint is int else st.floats(low, high)
    if "pattern" in metadata:
        return st.sampled_from(["a", "0-a"])
    if "parser" in metadata:
        texts = st.sampled_from([*filter(legal_for(metadata["parser"]), PARSED)])
        return texts if hint is str else st.lists(texts, max_size=2).map(tuple)
    return values(hint)


@settings(max_examples=150)
@given(st.sampled_from(DATA), st.data())
def test_every_kind_of_data_survives_json(cls: type[Any], data: st.DataObject) -> None:
    """What is written as JSON text is read back equal, whatever is in it."""
    value = data.draw(values(cls))

    assert decode(cls, json.loads(json.dumps(encode(value)))) == value


def test_unknown_fields_are_ignored() -> None:
    """A newer side may say more, at every depth."""
    data = {"node": "a", "moon": 1, "gpus": [{"index": 3, "colour": "red"}]}

    assert decode(Facts, data) == Facts("a", gpus=(Gpu(3),))


@pytest.mark.parametrize(
    ("cls", "data"),
    [
        pytest.param(RankExited, ["rank", 3], id="no object"),
        pytest.param(RankExited, {"code": 0}, id="field missing"),
        pytest.param(Ended, {"state": "asleep"}, id="unknown enum value"),
        pytest.param(Ended, {"state": "stuck", "survivors": 7}, id="number for a list"),
        pytest.param(Ended, {"state": "stuck", "survivors": "78"}, id="text for a list"),
        pytest.param(Facts, {"node": "a", "preset_env": ["A"]}, id="list for a mapping"),
        pytest.param(Facts, {"node": "a", "gpus": [7]}, id="number for an object in a list"),
    ],
)
def test_data_of_another_shape_is_a_value_error(cls: type[Any], data: Any) -> None:
    """Whatever comes from outside, readers need to catch one exception only."""
    with pytest.raises(ValueError):  # noqa: PT011 (any of them will do)
        decode(cls, data)


def test_a_set_becomes_a_list() -> None:
    """In order, as `pull --json` prints it."""
    assert json.loads(json.dumps(encode(PullResult(folders={"b", "a"}))))["folders"] == ["a", "b"]
