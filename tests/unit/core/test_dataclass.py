"""Our decorator `dataclass`: what it makes behaves as what the standard one makes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field, fields, replace
from typing import Any

import pytest

from runner.core.dataclass import dataclass


@dataclass(frozen=True)
class Point:
    """Frozen, with what fields can have."""

    x: int
    label: str = field(default="", compare=False)
    secret: str = field(default="s", repr=False)


@dataclass(frozen=True)
class Further(Point):
    """One field more."""

    y: int = 0


def test_texts_equality_and_functions_of_the_standard_module() -> None:
    """By the fields that are to be shown, and compared; copies and pickles are equal."""
    further: Any = Further(1, y=2)
    assert repr(Point(1)) == "Point(x=1, label='')"
    assert {Point(1, "a"), Point(1, "b")} == {Point(1)}
    assert Further(1) != Point(1)
    assert replace(further, x=3) == Further(3, y=2)
    assert [each.name for each in fields(further)] == ["x", "label", "secret", "y"]
    assert copy.deepcopy(further) == pickle.loads(pickle.dumps(further)) == further  # noqa: S301
    with pytest.raises(dataclasses.FrozenInstanceError):
        further.x = 2
