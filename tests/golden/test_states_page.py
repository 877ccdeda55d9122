"""The page of states is made from the tables of legal transitions in the code."""

from __future__ import annotations

import ast
import enum
import inspect
import itertools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

from runner.core.protocol import states
from tests.lab.launching import ROOT

pytestmark = [pytest.mark.documents("docs/states.md")]

PAGE = ROOT / "docs" / "states.md"
HEAD = """\
# States

What a run, an attempt and a node may be, and what may follow. This page is made from the tables in
`runner/core/protocol/states.py` by `pytest tests/golden/test_states_page.py --update-golden`.
"""

Table = Mapping[enum.Enum, Collection[enum.Enum]]


def tables() -> Iterator[Table]:
    """Yield every table of transitions, in the order of the file."""
    for value in vars(states).values():
        if isinstance(value, dict) and all(isinstance(key, enum.Enum) for key in value):
            yield value


def meanings(cls: type[enum.Enum]) -> dict[str, str]:
    """Return what each member means: the text below its definition."""
    source = ast.parse(Path(inspect.getfile(cls)).read_text(encoding="utf-8"))
    body = next(
        n.body for n in source.body if isinstance(n, ast.ClassDef) and n.name == cls.__name__
    )
    return {
        ast.unparse(member.targets[0]): " ".join(str(ast.literal_eval(text.value)).split())
        for member, text in itertools.pairwise(body)
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr)
    }


def section(table: Table) -> str:
    """Return the diagram and the table of one enum."""
    cls = type(next(iter(table)))
    name = {state: str(state.value).replace(" ", "_") for state in cls}
    arrows = [f"[*] --> {name[next(iter(cls))]}"]
    for state in cls:
        arrows += [f"{name[state]} --> {name[after]}" for after in cls if after in table[state]]
        arrows += [] if table[state] else [f"{name[state]} --> [*]"]
    meaning = meanings(cls)
    rows = [
        f"| {state.value} | {meaning[state.name]} "
        f"| {', '.join(str(after.value) for after in cls if after in table[state]) or '–'} |"
        for state in cls
    ]
    return "\n".join(
        [
            *("", f"## {(cls.__doc__ or '').splitlines()[0].rstrip('.')}", ""),
            *("```mermaid", "stateDiagram-v2", *(f"  {arrow}" for arrow in arrows), "```", ""),
            *("| state | meaning | may become |", "|---|---|---|", *rows, ""),
        ]
    )


def test_the_page_is_made_from_the_tables(request: pytest.FixtureRequest) -> None:
    """Read the diff after --update-golden."""
    page = HEAD + "".join(map(section, tables()))
    if request.config.getoption("--update-golden", default=False):
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page


def test_every_state_has_its_row_and_can_be_reached() -> None:
    """Each enum of states has a table; each state but the first follows another one."""
    enums = {c for c in vars(states).values() if inspect.isclass(c) and issubclass(c, enum.Enum)}
    assert {type(next(iter(table))) for table in tables()} == enums - {enum.Enum}
    for table in tables():
        cls = type(next(iter(table)))
        assert set(table) == set(cls)
        assert {after for follow in table.values() for after in follow} >= set(list(cls)[1:])
