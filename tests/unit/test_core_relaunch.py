"""Who takes part in the next attempt of a run that failed."""

from __future__ import annotations

import pytest

from runner.core.relaunch import LONGEST_S, next_spec, pause_s
from runner.core.spec import Node, Relaunch, Spec, Task


def spec(used: str, spares: str = "", least: int | None = None) -> Spec:
    """A spec of nodes a, b, c, …, of which some are spare."""
    nodes, more = (tuple(Node(name, name) for name in names) for names in (used, spares))
    return Spec("r", "c", nodes, Task("t", "script", "t.py"), spares=more, least=least)


@pytest.mark.parametrize(
    ("before", "gone", "suspect", "after"),
    [
        pytest.param(spec("abc"), "", "b", ("abc", ""), id="no spare: it is tried again"),
        pytest.param(spec("abc"), "b", "", None, id="too few are left"),
        pytest.param(spec("abc", "d"), "b", "", ("acd", ""), id="a spare takes its place"),
        pytest.param(spec("abc", "d"), "a", "", ("bcd", ""), id="of the master, too"),
        pytest.param(spec("abc", "d"), "", "b", ("acd", "b"), id="who failed is spare now"),
        pytest.param(spec("abc", "de"), "bd", "a", ("ace", ""), id="a suspect is better than none"),
        pytest.param(spec("abc", least=2), "b", "", ("ac", ""), id="elastic: fewer will do"),
        pytest.param(spec("abc", least=2), "bc", "", None, id="elastic: too few"),
    ],
)
def test_who_takes_part(
    before: Spec, gone: str, suspect: str, after: tuple[str, str] | None
) -> None:
    """As many as before, in the order of the YAML."""
    found = next_spec(before, gone, suspect)

    told = found and tuple("".join(n.name for n in nodes) for nodes in (found.nodes, found.spares))
    assert told == after


def test_each_pause_is_twice_as_long() -> None:
    """Up to a bound."""
    asked = Spec("r", "c", (), Task("t", "script", "t.py"), relaunch=Relaunch(50, 5.0))

    assert [pause_s(asked, attempt) for attempt in (1, 2, 3)] == [5.0, 10.0, 20.0]
    assert pause_s(asked, 40) == LONGEST_S
