"""Reader of `metrics.jsonl`: a series for each figure, of the lowest rank and over all ranks."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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

_NUMBER = r"-?\d[\d.eE+-]{0,40}"
_FIGURE = rf'null|{_NUMBER}|"[A-Za-z-]{{1,9}}"'
_LINE = re.compile(
    r'^(?:\{"v": 1, "node": "[^"\\\n]*", "attempt": (\d{1,6}), "rank": (\d{1,9}), '
    rf'"stream": "[a-z]+", "offset": \d+, "time": (null|{_NUMBER}), "step": (\d{{1,15}}), '
    rf'"steps": (null|\d{{1,15}}), "loss": ({_FIGURE}), "rate": ({_FIGURE}), '
    r'"unit": "([^"\\\n]*)", "more": \{([^{}\n]*)\}\}|(.+))$',
    re.MULTILINE,
)
"""A line as it is written, in a third of the time of a JSON parser; its last group is another."""


class _Lines(NamedTuple):
    """Columns of lines: their figures, as texts of JSON where they were found in it."""

    attempt: Sequence[Any]
    rank: Sequence[Any]
    time: Sequence[Any]
    step: Sequence[Any]
    steps: Sequence[Any]
    loss: Sequence[Any]
    rate: Sequence[Any]
    unit: Sequence[str]
    more: Sequence[Any]


class _Values(NamedTuple):
    """Columns of values of a metric."""

    attempt: Sequence[int]
    rank: Sequence[int]
    time: Sequence[float]  # NaN if unknown
    step: Sequence[int]
    value: Sequence[float]

    def only(self, indexes: Sequence[int]) -> _Values:
        """Return some rows."""
        columns: Iterable[list[Any]] = ([column[i] for i in indexes] for column in self)
        return _Values(*columns)


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
            self.take(block.decode(errors="replace"))
        if self._bad_count:
            problems.add(METRICS_FILE, f"{self._bad_count:,} lines are no metrics")
        if self._omitted:
            problems.add(METRICS_FILE, self._omitted)

    def take(self, text: str) -> None:
        """Take lines."""
        found = _LINE.findall(text)
        lines = [fields[:9] for fields in found if not fields[9]]
        others = [fields[9] for fields in found if fields[9]]
        try:
            self._take_lines(lines)
        except (ValueError, OverflowError):  # a number that is none, in one of them
            for line in lines:
                self._take_each(line)
        for other in others:
            try:
                line = _line(parse_json(other))
            except (ValueError, OverflowError, KeyError, TypeError, AttributeError):
                self._bad_count += 1
                continue
            self._take_each(line)

    def _take_each(self, line: Sequence[Any]) -> None:
        try:
            self._take_lines([line])
        except (ValueError, OverflowError):
            self._bad_count += 1

    def _take_lines(self, lines: Sequence[Sequence[Any]]) -> None:
        """Take lines; raise ValueError for a number that is none, and take nothing then."""
        if not lines:
            return
        columns = _Lines(*zip(*lines, strict=True))
        attempts, ranks, steps = (
            list(map(int, column)) for column in (columns.attempt, columns.rank, columns.step)
        )
        times = _times(columns.time)
        values = _columns(columns, _Values(attempts, ranks, times, steps, steps))
        self._take_progress(ranks, steps, columns.steps)
        units = [*filter(None, columns.unit)]
        for name, found in values.items():
            if found.value:
                self._take_values(name, found, units[-1] if units and name == "rate" else "")

    def _take_progress(
        self, ranks: Sequence[int], steps: Sequence[int], counts: Sequence[Any]
    ) -> None:
        for has_count in (True, False):
            having = [i for i, count in enumerate(counts) if (count != "null") == has_count]
            if not having:
                continue
            lowest = min(ranks[i] for i in having)
            at = next(i for i in reversed(having) if ranks[i] == lowest)
            known = self._progress.get(has_count)
            if known is None or lowest <= known[0]:
                count = int(counts[at]) if has_count else None
                self._progress[has_count] = (lowest, steps[at], count)

    def _take_values(self, name: str, values: _Values, unit: str) -> None:
        metric = self._metrics.get(name)
        if metric is None:
            if len(self._metrics) >= MAX_NAMES or not name.isprintable() or len(name) > MAX_TEXT:
                self._omitted = f"metrics beyond {MAX_NAMES} names are left out"
                return
            metric = self._metrics[name] = _MetricHistory(self._max_points)
        metric.unit = unit or metric.unit
        attempts = {*values.attempt}
        for attempt in sorted(attempts):
            if attempt not in metric.series:
                if self._series_count >= MAX_SERIES:
                    self._omitted = f"metrics beyond {MAX_SERIES} series are left out"
                    continue
                self._series_count += 1
            is_only = len(attempts) == 1
            rows = [] if is_only else [i for i, n in enumerate(values.attempt) if n == attempt]
            metric.extend(attempt, values if is_only else values.only(rows))

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

    def extend(self, attempt: int, columns: _Values) -> None:
        """Add values of an attempt."""
        new_ranks = {*columns.rank}
        if len(self._ranks) <= 1 < len(self._ranks | new_ranks):
            for number, series in self.series.items():
                self._spread_of(number).merge(series.all_points())
        self._ranks |= new_ranks
        if len(self._ranks) > 1:
            self._spread_of(attempt).extend(columns.time, columns.step, columns.value)
        lowest = min(self._ranks)
        if lowest != self._rank:
            self._rank, self._last = lowest, {}
            self.series = {number: SeriesBuilder(self._max_points) for number in self.series}
        series = self.series.setdefault(attempt, SeriesBuilder(self._max_points))
        own = columns
        if len(new_ranks) > 1 or lowest not in new_ranks:
            own = columns.only([i for i, rank in enumerate(columns.rank) if rank == lowest])
            if not own.value:
                return
        series.extend(own.time, own.step, own.value)
        self._last[attempt] = own.value[-1]

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


def _line(data: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the figures of a line by its data, like those found; raise an error of its shape."""
    attempt, rank = _whole(data["attempt"], MAX_ATTEMPT), _whole(data["rank"], MAX_RANK)
    steps = "null" if data.get("steps") is None else _whole(data["steps"])
    time = data.get("time")
    loss, rate = (_number(data.get(name)) for name in ("loss", "rate"))
    unit, more = data.get("unit"), data.get("more")
    return (
        *(attempt, rank, time if type(time) in (int, float) else "null"),
        *(_whole(data["step"]), steps),
        *("null" if figure is None else figure for figure in (loss, rate)),
        unit if isinstance(unit, str) and unit.isprintable() else "",
        more if isinstance(more, dict) else {},
    )


def _objects(texts: Sequence[Any]) -> Iterable[Mapping[str, Any]]:
    """Return the data of the insides of objects; raise ValueError."""
    if len(texts) == 1 and isinstance(texts[0], dict):
        return texts
    if not any(texts):
        return [{}] * len(texts)
    found = parse_json(f"[{{{'},{'.join(texts)}}}]")
    if len(found) != len(texts):
        raise ValueError("no object")
    return found  # type: ignore[no-any-return]  # objects, by their braces


def _times(column: Sequence[Any]) -> list[float]:
    times = [math.nan if time == "null" else float(time) for time in column]
    is_sane = min(times) > -MAX_TIME and max(times) < MAX_TIME
    return times if is_sane else [t if -MAX_TIME < t < MAX_TIME else math.nan for t in times]


def _columns(lines: _Lines, places: _Values) -> dict[str, _Values]:
    """Return the columns of each figure of lines that stand at these places; raise ValueError."""
    values = {}
    for name, column in (("loss", lines.loss), ("rate", lines.rate)):
        try:
            values[name] = places._replace(value=list(map(float, column)))  # as in most files
        except ValueError:
            having = [i for i, figure in enumerate(column) if figure != "null"]
            figures = [_figure(column[i]) for i in having]
            values[name] = places.only(having)._replace(value=figures)
    rows = defaultdict[str, list[int]](list)
    numbers = defaultdict[str, list[float]](list)
    for row, more in enumerate(_objects(lines.more)):
        for name, figure in more.items():
            number = figure if type(figure) is float else _number(figure)
            if number is not None:
                rows[name].append(row)
                numbers[name].append(number)
    for name, found in numbers.items():
        is_whole = len(found) == len(places.step)
        own = places if is_whole else places.only(rows[name])
        if name not in ("loss", "rate"):  # which stand beside the others
            values[name] = own._replace(value=found)
    return values


def _figure(given: Any) -> float:
    if type(given) is str and given[0] == '"':
        return NOT_FINITE.get(given[1:-1], math.nan)
    return float(given)


def _number(value: object) -> float | None:
    """Return the number that a figure is, None for another text."""
    if type(value) in (int, float):
        return float(value)  # type: ignore[arg-type]  # checked
    return NOT_FINITE.get(value) if isinstance(value, str) else None


def _whole(value: object, limit: int = MAX_STEP) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError("no whole number")
    return value
