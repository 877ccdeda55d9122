"""The tables that compare launchers: made from the record of one run."""

from __future__ import annotations

import pytest

from benchmarks.peers.launchers import LAUNCHERS
from benchmarks.peers.results import Measurement, Record, Taking, Values, load
from benchmarks.peers.scenes import SCENES
from benchmarks.peers.tables import (
    PAGES,
    ROOT,
    Column,
    docs_part,
    median_of,
    readme_part,
    replaced,
    span,
    tables,
)

ROUNDS: list[Values] = [
    {"ranks_gone": 2.0, "ranks": 0},
    {"ranks_gone": None, "ranks": 4},
    {"error": "exit code 1\nno"},
]
GONE = Column("", "ranks_gone", "{ranks} left")


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_are_made_from_the_record(name: str, request: pytest.FixtureRequest) -> None:
    """A claim without its row is not made. After a run: `make unit ARGS=--update-golden`."""
    path, text = ROOT / name, PAGES[name](load())
    if request.config.getoption("--update-golden", default=False):
        path.write_text(replaced(path.read_text(), text))
    page = path.read_text()
    assert page == replaced(page, text)


def test_the_record_is_of_every_launcher_and_scene() -> None:
    """A launcher that could not be installed says why."""
    record = load()
    assert [each.name for each in record.launchers] == [each.name for each in LAUNCHERS]
    assert all(each.version or each.skipped for each in record.launchers)
    assert {each.scene for each in record.measurements} == SCENES.keys() == tables(record).keys()


def test_a_cell_tells_of_all_rounds() -> None:
    """Numbers as a span; what did not happen, or could not be tried, with how often."""
    assert span(ROUNDS, GONE) == "2.0; 4 left in 1 of 3; exit code 1 in 1 of 3"
    assert span(ROUNDS[1:2], GONE) == "4 left"
    assert span(ROUNDS[2:], GONE) == "exit code 1"
    assert (
        span([{"ranks_gone": x, "ranks": 0} for x in (3.0, 1.0, 2.0)], GONE) == "2.0 (1.0 to 3.0)"
    )
    assert median_of([{"lines": 9, "whole": 2}], Column("", "torn", digits=0)) == "7"
    assert span([], GONE) == ""


def test_the_quickest_stands_first_whoever_it_is() -> None:
    """And it alone is bold in README; one that leaves processes behind comes last."""
    limits = {"failure": 20.0, "interrupt": 30.0, "kill": 30.0, "unplug": 60.0}
    settings = {"nodes": 4, "many": 64, "lines": 10, "limits": limits}
    machine = {"cores": 2, "memory_gib": 8, "load": 0.1, "python": "3.11", "torch": "2.13"}
    taking = [Taking(name, "ranks", "1") for name in ("runner", "other", "third")]
    values: list[Values] = [
        {"ranks_gone": 2.0, "ranks": 0},
        {"ranks_gone": 1.0, "ranks": 0},
        {"ranks_gone": None, "ranks": 4},
    ]
    rounds = [
        Measurement("failure", each.name, 1, {"ended": None, **value})
        for each, value in zip(taking, values, strict=True)
    ]
    record = Record("2026-11-26", machine, settings, taking, rounds)
    rows = docs_part(record).splitlines()[-3:]
    assert [row.split(" | ")[0] for row in rows] == ["| other", "| runner", "| third"]
    assert readme_part(record).splitlines()[2:] == [
        "| runner | 2.0 |",
        "| other | **1.0** |",
        "| third | 4 left |",
    ]
