"""Reader of `metrics.jsonl`: a series for each figure, of the lowest rank and over all ranks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from runner.control.history.bounded_reader import MAX_TIME, Problems, blocks_of_lines
from runner.control.history.series import SeriesBuilder, SpreadBuilder
from runner.control.record.metrics_record import MAX_SIZE, METRICS_FILE
from runner.core.codec import parse_json
from runner.core.history.run_data import MAX_POINTS, Metric, Series
from runner.core.model.metrics import MAX_STEP, MAX_TEXT

MAX_NAMES, MAX_SERIES = 100, 256  # of metrics, and of those by attempt
MAX_ATTEMPT, MAX_RANK = 10**6, 10**9
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Texts in the file that are numbers."""


class _Line(NamedTuple):
    """One line."""

    attempt: int
    rank: int
    time: float  # NaN if unknown
    step: int
    steps: int | None
    unit: str  # of the rate
    figures: Mapping[str, float]


class _Value(NamedTuple):
    """One value of a metric."""

    rank: int
    time: float
    step: int
    value: float


class MetricsHistory:
    """The metrics of a run as they are read."""

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self._max_points = max_points
        self._metrics: dict[str, _MetricHistory] = {}
        self._series_count = 0
        self._progress: dict[bool, tuple[int, int, int | None]] = {}
        self._omitted = ""
        self._bad_count = 0

    def read(self, folder: Path, problems: Problems) -> None:
        """Read the file of a record."""
        for block in blocks_of_lines(folder / METRICS_FILE, 2 * MAX_SIZE, problems):
            self._take(block.splitlines())
        if self._bad_count:
            problems.add(METRICS_FILE, f"{self._bad_count:,} lines are no metrics")
        if self._omitted:
            problems.add(METRICS_FILE, self._omitted)

    def _take(self, lines: Sequence[bytes]) -> None:
        values = defaultdict[tuple[str, int], list[_Value]](list)  # by metric and attempt
        unit = ""
        for text in lines:
            try:
                line = _parse_line(text)
            except (ValueError, OverflowError, KeyError, TypeError, AttributeError):
                self._bad_count += 1
                continue
            unit = line.unit or unit
            known = self._progress.get(line.steps is not None)
            if known is None or line.rank <= known[0]:
                self._progress[line.steps is not None] = (line.rank, line.step, line.steps)
            for name, figure in line.figures.items():
                value = _Value(line.rank, line.time, line.step, figure)
                values[name, line.attempt].append(value)
        for (name, attempt), found in sorted(values.items(), key=lambda item: item[0][1]):
            self._take_values(name, attempt, found, unit if name == "rate" else "")

    def _take_values(self, name: str, attempt: int, values: Sequence[_Value], unit: str) -> None:
        metric = self._metrics.get(name)
        if metric is None:
            if len(self._metrics) >= MAX_NAMES or not name.isprintable() or len(name) > MAX_TEXT:
                self._omitted = f"metrics beyond {MAX_NAMES} names are left out"
                return
            metric = self._metrics[name] = _MetricHistory(self._max_points)
        metric.unit = unit or metric.unit
        if attempt not in metric.series:
            if self._series_count >= MAX_SERIES:
                self._omitted = f"metrics beyond {MAX_SERIES} series are left out"
                return
            self._series_count += 1
        metric.extend(attempt, values)

    @property
    def progress(self) -> tuple[int | None, int | None]:
        """The last step of the lowest rank that says how many there are, and how many."""
        found = self._progress.get(True) or self._progress.get(False)
        return found[1:] if found else (None, None)

    def metrics(self, earliest: float) -> tuple[Metric, ...]:
        """Return the metrics, the loss and the rate first; times before `earliest` are unknown."""
        first = [name for name in ("loss", "rate") if name in self._metrics]
        names = [*first, *sorted(self._metrics.keys() - {*first})]
        built = (self._metrics[name].build(name, earliest) for name in names)
        return tuple(metric for metric in built if metric.by_attempt)


class _MetricHistory:
    """One metric of all ranks."""

    def __init__(self, max_points: int) -> None:
        self.unit = ""
        self.series: dict[int, SeriesBuilder] = {}  # of the lowest rank so far
        self._spread: dict[int, SpreadBuilder] = {}  # once several ranks have it
        self._max_points = max_points
        self._rank = -1
        self._ranks: set[int] = set()
        self._last: dict[int, float] = {}

    def extend(self, attempt: int, values: Sequence[_Value]) -> None:
        """Add values of an attempt."""
        new_ranks = {value.rank for value in values}
        if len(self._ranks) <= 1 < len(self._ranks | new_ranks):
            for number, series in self.series.items():
                self._spread_of(number).merge(series.all_points())
        self._ranks |= new_ranks
        if len(self._ranks) > 1:
            self._spread_of(attempt).extend(*_columns(values))
        lowest = min(self._ranks)
        if lowest != self._rank:
            self._rank, self._last = lowest, {}
            self.series = {number: SeriesBuilder(self._max_points) for number in self.series}
        series = self.series.setdefault(attempt, SeriesBuilder(self._max_points))
        own = [value for value in values if value.rank == lowest]
        if own:
            series.extend(*_columns(own))
            self._last[attempt] = own[-1].value

    def _spread_of(self, attempt: int) -> SpreadBuilder:
        return self._spread.setdefault(attempt, SpreadBuilder(self._max_points))

    def build(self, name: str, earliest: float) -> Metric:
        """Return the metric."""
        built = {number: each.build(earliest) for number, each in sorted(self.series.items())}
        series = {number: each for number, each in built.items() if each.steps}
        spread = {n: each.build(earliest) for n, each in sorted(self._spread.items())}
        last = self._last[max(self._last)] if self._last else math.nan
        return Metric(
            name=name,
            unit=self.unit,
            rank=self._rank,
            rank_count=len(self._ranks),
            last=last if math.isfinite(last) else None,
            least=min(_extremes(series, "low"), default=None),
            most=max(_extremes(series, "high"), default=None),
            by_attempt=series,
            spread=spread,
        )


def _extremes(by_attempt: Mapping[int, Series], side: str) -> list[float]:
    columns = (getattr(series, side) or series.values for series in by_attempt.values())
    return [value for column in columns for value in column if value is not None]


def _columns(values: Sequence[_Value]) -> tuple[list[float], list[int], list[float]]:
    """Return the times, the steps and the values."""
    times = [value.time for value in values]
    return times, [value.step for value in values], [value.value for value in values]


def _parse_line(text: bytes) -> _Line:
    """Return the figures of a line; raise an error of its shape."""
    data = parse_json(text)
    time = data.get("time")
    steps = data.get("steps")
    is_known = type(time) in (int, float) and -MAX_TIME < time < MAX_TIME
    unit = data.get("unit")
    more = data.get("more")
    figures = {"loss": None, "rate": None, **(more if isinstance(more, dict) else {})}
    figures.update(loss=data.get("loss"), rate=data.get("rate"))
    numbers = ((name, _number(figure)) for name, figure in figures.items())
    return _Line(
        attempt=_whole(data["attempt"], MAX_ATTEMPT),
        rank=_whole(data["rank"], MAX_RANK),
        time=float(time) if is_known else math.nan,
        step=_whole(data["step"]),
        steps=None if steps is None else _whole(steps),
        unit=unit if isinstance(unit, str) and unit.isprintable() else "",
        figures={name: number for name, number in numbers if number is not None},
    )


def _number(value: object) -> float | None:
    """Return the number that a figure is, None for another text."""
    if type(value) in (int, float):
        return float(value)  # type: ignore[arg-type]  # checked
    return NOT_FINITE.get(value) if isinstance(value, str) else None


def _whole(value: object, limit: int = MAX_STEP) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError("no whole number")
    return value
