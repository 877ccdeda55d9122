"""Columns of numbers on the page's time axis, seconds since the launch; few enough to be drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from runner.core.history.run_data import Series

Number = int | float | None


def rounded(value: float | None) -> Number:
    """Return a number with 6 significant digits, None for what is no number."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short  # noqa: PLR2004


def relative(wall: float | None, origin: float) -> Number:
    """Return a time in seconds since the launch, to the millisecond."""
    if wall is None or not math.isfinite(wall):
        return None
    short = round(wall - origin, 3)
    return int(short) if short.is_integer() else short


def series_columns(series: Series, origin: float, limit: int) -> dict[str, list[Number]]:
    """Return the columns t, s, v, lo, hi of a series, in at most `limit` points.

    `s` is [] without steps, `lo` and `hi` are [] where every point is one value.
    """
    rows = list(_rows(series, origin))
    size = math.ceil(len(rows) / limit) if limit else 1
    if size > 1:
        rows = [_merged(rows[at : at + size]) for at in range(0, len(rows), size)]
    has_band = size > 1 or bool(series.low)
    return {
        "t": [relative(row[0], 0.0) for row in rows],
        "s": [int(row[1]) for row in rows] if series.steps else [],
        "v": [rounded(row[2]) for row in rows],
        "lo": [rounded(row[3]) for row in rows] if has_band else [],
        "hi": [rounded(row[4]) for row in rows] if has_band else [],
    }


def _rows(series: Series, origin: float) -> Iterable[tuple[Any, ...]]:
    steps = series.steps or (0,) * len(series.times)
    low, high = series.low or series.values, series.high or series.values
    for time, step, value, least, most in zip(
        series.times, steps, series.values, low, high, strict=False
    ):
        yield (None if time is None else time - origin), step, value, least, most


def _merged(rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return one point for several: the last time and step, the mean, and the extremes."""
    values = [row[2] for row in rows if row[2] is not None]
    lows = [row[3] for row in rows if row[3] is not None]
    highs = [row[4] for row in rows if row[4] is not None]
    mean = sum(values) / len(values) if values else None
    return rows[-1][0], rows[-1][1], mean, min(lows, default=None), max(highs, default=None)
