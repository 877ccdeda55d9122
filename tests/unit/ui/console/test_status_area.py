"""The live status area: its text, and its size."""

from __future__ import annotations

import pytest

from runner.ui.console.status_area import StatusArea
from tests.unit.ui.console.test_live import Clock

NODES = [f"gpu{number}" for number in range(1, 9)]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def area(clock: Clock) -> StatusArea:
    return StatusArea(NODES, colour=False, clock=clock)


def look(area: StatusArea, columns: int = 80, rows: int = 24) -> list[str]:
    """Return the picture as text; each row fits, with a cell to spare."""
    picture = area.render(columns, rows)
    assert all(row.cells < max(columns, 2) for row in picture)
    return [row.text.decode() for row in picture]


def test_what_is_over_soon_is_never_shown(area: StatusArea, clock: Clock) -> None:
    """A quick run has no area."""
    area.phase("connecting")
    clock.now += 0.9
    first = look(area)
    area.phase("running")
    clock.now += 0.9

    assert first == look(area) == []


def test_equal_states_are_one_row(area: StatusArea, clock: Clock) -> None:
    """Nodes by range, in order of the first; what others say stays in its row."""
    area.phase("connecting")
    for node in NODES:
        area.node_status(node, "ready")
    area.node_status("gpu3", "asking\n  DNS\x1b ")
    clock.now += 65

    assert look(area) == [
        "connecting  1 m 05 s",
        "  gpu[1-2,4-8]  ready",
        "  gpu3          asking DNS\\x1b",
    ]


def test_area_takes_a_third_at_most(area: StatusArea, clock: Clock) -> None:
    """What has no room is counted."""
    area.phase("pushing the code")
    for number, node in enumerate(NODES):
        area.node_status(node, f"{number} %")
    clock.now += 2

    assert look(area, rows=12) == [
        "pushing the code  2 s",
        "  gpu1  0 %",
        "  gpu2  1 %",
        "  … and 6 more lines",
    ]
    assert look(area, rows=2) == ["pushing the code  2 s"]


def test_silence_of_all_ranks_is_told(area: StatusArea, clock: Clock) -> None:
    """Since the last output of any; while they are started nothing is expected."""
    area.phase("starting")
    clock.now += 90
    assert look(area) == ["starting  1 m 30 s"]
    area.phase("running")
    clock.now += 60
    area.heard()
    clock.now += 29
    assert look(area) == ["running  1 m 29 s"]
    clock.now += 6
    assert look(area) == ["running  1 m 35 s  no output for 35 s"]
