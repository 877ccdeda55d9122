"""Our decorator `dataclass`: what it makes behaves as what the standard one makes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
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
    tags: tuple[str, ...] = ()


@dataclass
class Counter:
    """Not frozen."""

    total: int = 0
    seen: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Empty:
    """Without fields."""


@dataclass(frozen=True)
class Further(Point):
    """One field more."""

    y: int = 0

    def __repr__(self) -> str:
        return "own"


def test_texts_and_equality() -> None:
    """By the fields that are to be shown, and compared."""
    assert repr(Point(1, tags=("a",))) == "Point(x=1, label='', tags=('a',))"
    assert Point(1, "a") == Point(1, "b") != Point(2)
    assert {Point(1, "a"), Point(1, "b")} == {Point(1)}
    assert Empty() == Empty()
    assert hash(Empty()) == hash(Empty())
    assert (repr(Further(1)), Further(1)) == ("own", Further(1, y=0))
    assert Further(1) != Point(1)
    assert Counter() == Counter(0, [])
    assert repr(Counter(2, [1])) == "Counter(total=2, seen=[1])"


def test_functions_of_the_standard_module() -> None:
    """They, copies and pickles take it as theirs."""
    further = Further(1, y=2)
    assert replace(further, x=3) == Further(3, y=2)
    assert [each.name for each in fields(further)] == ["x", "label", "secret", "tags", "y"]
    assert dataclasses.asdict(Point(1))["tags"] == ()
    assert copy.deepcopy(further) == pickle.loads(pickle.dumps(further)) == further  # noqa: S301
    counter = Counter()
    counter.total += 1
    assert replace(counter).total == 1


def change(point: Any) -> None:
    """Give a field another value."""
    point.x = 2


def delete(point: Any) -> None:
    """Remove a field."""
    del point.x


def add(point: Any) -> None:
    """Have one more field."""
    point.z = 2


@pytest.mark.parametrize("act", [change, delete, add])
@pytest.mark.parametrize("point", [Point(1), Further(1)])
def test_what_is_frozen_stays_as_it_is(act: Callable[[Any], None], point: Point) -> None:
    """As in the standard one."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        act(point)
    assert point == type(point)(1)
