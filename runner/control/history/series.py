"""Series reduced while they grow: neighbouring points become one, with its least and its most."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

from runner.core.history.run_data import Series

PENDING = 4096  # values that are taken at once


class Summary(NamedTuple):
    """Some values as one point."""

    time: float  # of the last one, like `step`; NaN if unknown
    step: int
    total: float  # of those that are finite
    number: int  # of these
    low: float
    high: float

    def merged(self, later: Summary) -> Summary:
        """Return this point and a later one as one."""
        return Summary(
            later.time,
            later.step,
            self.total + later.total,
            self.number + later.number,
            min(self.low, later.low),
            max(self.high, later.high),
        )


def summarize(time: float, step: int, values: Sequence[float]) -> Summary:
    """Return some values as one point."""
    total = sum(values)
    if not math.isfinite(total):
        values = [value for value in values if math.isfinite(value)]
        total = sum(values)
    if not values:
        return Summary(time, step, 0.0, 0, math.inf, -math.inf)
    return Summary(time, step, total, len(values), min(values), max(values))


class SeriesBuilder:
    """A series of values in their order, of at most `max_points`."""

    def __init__(self, max_points: int) -> None:
        self._max = max(2, max_points)
        self._width = 1  # values for each point
        self.points: list[Summary] = []
        self._times: list[float] = []
        self._steps: list[int] = []
        self._values: list[float] = []

    def extend(self, times: Iterable[float], steps: Iterable[int], values: Iterable[float]) -> None:
        """Add values; NaN is no number, and no time."""
        self._times += times
        self._steps += steps
        self._values += values
        if len(self._values) >= max(PENDING, self._width):
            self._take(len(self._values) // self._width * self._width)

    def build(self, earliest: float = -math.inf, *, has_steps: bool = True) -> Series:
        """Return the series; times before `earliest` are unknown."""
        self.all_points()
        while len(self.points) > self._max:
            self._halve()
        return as_series(*(self.points, earliest), has_steps=has_steps, has_range=self._width > 1)

    def all_points(self) -> Sequence[Summary]:
        """Return what it has so far."""
        self._take(len(self._values))
        return self.points

    def _take(self, count: int) -> None:
        """Make points of the first values that wait."""
        times, steps, values = self._times[:count], self._steps[:count], self._values[:count]
        if self._width == 1 and math.isfinite(sum(values)):
            self.points += map(Summary, times, steps, values, repeat(1), values, values)
        else:
            for start in range(0, count, self._width):
                last = min(start + self._width, count) - 1
                self.points.append(summarize(times[last], steps[last], values[start : last + 1]))
        for column in (self._times, self._steps, self._values):
            del column[:count]
        while len(self.points) > 2 * self._max:
            self._halve()

    def _halve(self) -> None:
        points, self._width = self.points, 2 * self._width
        self.points = [a.merged(b) for a, b in zip(points[::2], points[1::2], strict=False)]
        self.points += points[len(points) & ~1 :]


class SpreadBuilder:
    """The mean, the least and the most over the ranks by step, of at most `max_points`."""

    def __init__(self, max_points: int) -> None:
        self._max = max(2, max_points)
        self._shift = 0  # a point has the steps that are equal without so many bits
        self._points: dict[int, Summary] = {}

    def extend(self, times: Sequence[float], steps: Sequence[int], values: Sequence[float]) -> None:
        """Add values of ranks."""
        keys = [step >> self._shift for step in steps] if self._shift else steps
        by_key = defaultdict[int, list[float]](list)
        for key, value in zip(keys, values, strict=True):
            by_key[key].append(value)
        last = dict(zip(keys, range(len(keys)), strict=True))
        self.merge(
            summarize(times[last[key]], steps[last[key]], found) for key, found in by_key.items()
        )

    def merge(self, points: Iterable[Summary]) -> None:
        """Add points."""
        for point in points:
            if not point.number:
                continue
            key = point.step >> self._shift
            known = self._points.get(key)
            self._points[key] = known.merged(point) if known else point
            if len(self._points) > 2 * self._max:
                self._halve()

    def build(self, earliest: float = -math.inf) -> Series:
        """Return the series; times before `earliest` are unknown."""
        while len(self._points) > self._max:
            self._halve()
        points = [self._points[key] for key in sorted(self._points)]
        return as_series(points, earliest)

    def _halve(self) -> None:
        """Double the steps of each point."""
        self._shift += 1
        old, self._points = self._points, {}
        for key in sorted(old):
            known = self._points.get(key >> 1)
            self._points[key >> 1] = known.merged(old[key]) if known else old[key]


def as_series(
    points: Sequence[Summary],
    earliest: float,
    *,
    has_steps: bool = True,
    has_range: bool = True,
) -> Series:
    """Return points as columns; times before `earliest` are unknown."""
    return Series(
        times=tuple(p.time if p.time >= earliest else None for p in points),
        steps=tuple(p.step for p in points) if has_steps else (),
        values=tuple(_finite(p.total / p.number) if p.number else None for p in points),
        low=tuple(_finite(p.low) for p in points) if has_range else (),
        high=tuple(_finite(p.high) for p in points) if has_range else (),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
