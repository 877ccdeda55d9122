"""Times of metrics lines that nobody read while they were written."""

from __future__ import annotations

from runner.control.history.line_times import fill_times


def test_unknown_times_are_spread_between_known_ones() -> None:
    """Where one of them is missing, they stay unknown."""
    known = (None, None, 4.0, None, 6.0, None)
    assert fill_times(known, 1.0, 8.0) == (2.0, 3.0, 4.0, 5.0, 6.0, 7.0)
    assert fill_times((None, 4.0, None), None, None) == (None, 4.0, None)
    assert fill_times((None, None), 5.0, 3.0) == (5.0, 5.0)
    assert fill_times((), 1.0, 2.0) == ()
