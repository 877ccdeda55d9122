"""Times of metrics lines, spread over the time between two looks of a host."""

from __future__ import annotations

import math

from runner.control.history.line_times import LineTimes, starts_of_ranks
from runner.core.protocol.events import Event, EventBody, RankExited, RankStarted


def event(wall: float, body: EventBody, attempt: int = 0) -> Event:
    """Return an event of a host."""
    return Event("r", "gpu1", attempt, 1, wall, wall, body)


def test_lines_of_one_look_are_spread_since_the_one_before() -> None:
    """Each rank by itself, and not over more than an interval."""
    times = LineTimes({(0, 0): 96.0})
    assert times.spread([0] * 4, [0] * 4, [100.0] * 4) == [97.0, 98.0, 99.0, 100.0]
    assert times.spread([0] * 3, [0, 0, 1], [110.0, 110.0, 110.0]) == [105.0, 110.0, 110.0]
    assert times.spread([0, 0], [0, 0], [500.0, 500.0]) == [495.0, 500.0]
    assert times.spread([1, 1], [0, 0], [600.0, 600.0]) == [595.0, 600.0], "of another attempt"


def test_a_clock_that_was_set_back_spreads_nothing() -> None:
    """Nor does a look that is not known; lines cut by the end of a block stay in order."""
    times = LineTimes({(0, 0): 200.0})
    assert times.spread([0, 0], [0, 0], [100.0, 100.0]) == [100.0, 100.0]
    assert times.spread([0, 0], [0, 0], [100.0, 100.0]) == [100.0, 100.0]
    assert all(map(math.isnan, times.spread([0, 0], [0, 0], [math.nan, math.nan])))


def test_a_rank_starts_when_it_first_did() -> None:
    """In each attempt."""
    events = [
        event(5.0, RankStarted(3, 7)),
        event(6.0, RankExited(3, 1)),
        event(7.0, RankStarted(3, 8, start=2)),
        event(9.0, RankStarted(3, 9), attempt=1),
    ]
    assert starts_of_ranks(events) == {(0, 3): 5.0, (1, 3): 9.0}
