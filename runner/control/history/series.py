"""Metrics and samples of a record as series, of at most so many points."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from runner.control.history.files import Problems, read_lines
from runner.control.record.file_names import HOSTS_FOLDER
from runner.control.record.metrics_record import METRICS_FILE
from runner.core.codec import parse_json
from runner.core.history.run_data import LOAD_FIGURES, GpuLoad, Metric, NodeLoad, Series
from runner.core.protocol.paths import SAMPLES_FILE
from runner.core.text import natural_key

MAX_NAMES = 100  # of metrics
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Texts in the file that are numbers."""

ERRORS = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""What a line that is not ours raises."""


class Point(NamedTuple):
    """A value of a figure."""

    time: float | None
    step: int
    value: float


class MetricsOnRecord(NamedTuple):
    """The metrics of a run, and how far the lowest rank is."""

    metrics: tuple[Metric, ...] = ()
    step: int | None = None
    steps: int | None = None


@dataclass
class _Figure:
    """A metric of the lowest rank so far."""

    rank: int
    unit: str = ""
    by_attempt: dict[int, list[Point]] = field(default_factory=lambda: defaultdict(list))


def read_metrics(
    folder: Path, max_points: int, earliest: float, problems: Problems
) -> MetricsOnRecord:
    """Return the metrics, the loss and the rate first; times before `earliest` are unknown."""
    figures: dict[str, _Figure] = {}
    progress: dict[bool, tuple[int, int, int | None]] = {}
    bad_count = 0
    for text in read_lines(folder / METRICS_FILE, problems):
        try:
            line = parse_json(text)
            rank = int(line["rank"])
            step = int(line["step"])
            attempt = int(line["attempt"])
            time = None if line["time"] is None else float(line["time"])
            steps = None if line["steps"] is None else int(line["steps"])
            figures_of_line = {"loss": line["loss"], "rate": line["rate"], **line["more"]}
            values = {name: _number(value) for name, value in figures_of_line.items()}
        except ERRORS:
            bad_count += 1
            continue
        known = progress.get(steps is not None)
        if known is None or rank <= known[0]:
            progress[steps is not None] = rank, step, steps
        if time is not None and time < earliest:
            time = None
        for name, number in values.items():
            if number is None:
                continue
            figure = figures.get(name)
            if figure is None or rank < figure.rank:
                figure = figures[name] = _Figure(rank)
            if rank == figure.rank:
                figure.by_attempt[attempt].append(Point(time, step, number))
                figure.unit = str(line["unit"]) if name == "rate" else ""
    if bad_count:
        problems.add(METRICS_FILE, f"{bad_count:,} lines are no metrics")
    if len(figures) > MAX_NAMES:
        problems.add(METRICS_FILE, f"{MAX_NAMES} of {len(figures):,} metrics are read")
    first = [name for name in ("loss", "rate") if name in figures]
    names = [*first, *sorted(figures.keys() - {*first})][:MAX_NAMES]
    metrics = tuple(_metric(name, figures[name], max_points) for name in names)
    found = progress.get(True) or progress.get(False) or (0, None, None)
    return MetricsOnRecord(metrics, found[1], found[2])


def _number(value: object) -> float | None:
    """Return the number that a figure is, None for a text; raise OverflowError."""
    if isinstance(value, str):
        return NOT_FINITE.get(value)
    return float(value) if isinstance(value, (int, float)) else None


def _metric(name: str, figure: _Figure, max_points: int) -> Metric:
    attempts = sorted(figure.by_attempt.items())
    values = [p.value for _, points in attempts for p in points if math.isfinite(p.value)]
    last = attempts[-1][1][-1].value
    return Metric(
        name=name,
        unit=figure.unit,
        rank=figure.rank,
        last=last if math.isfinite(last) else None,
        least=min(values, default=None),
        most=max(values, default=None),
        by_attempt={attempt: reduced(points, max_points) for attempt, points in attempts},
    )


def reduced(points: Sequence[Point], max_points: int) -> Series:
    """Return a series of at most so many points: of neighbours, the least and the greatest."""
    if len(points) > max_points:
        width = math.ceil(2 * len(points) / (max_points - 2))
        points = [*_peaks(points, width), points[-1]]
    return Series(
        times=tuple(point.time for point in points),
        steps=tuple(point.step for point in points),
        values=tuple(point.value if math.isfinite(point.value) else None for point in points),
    )


def _peaks(points: Sequence[Point], width: int) -> Iterable[Point]:
    for start in range(0, len(points) - 1, width):
        some = [p for p in points[start : start + width] if math.isfinite(p.value)]
        if some:
            least = min(some, key=lambda point: point.value)
            most = max(some, key=lambda point: point.value)
            yield from sorted({least, most}, key=some.index)


def read_loads(
    folder: Path, max_points: int, earliest: float, problems: Problems
) -> tuple[NodeLoad, ...]:
    """Return the load of each node; samples before `earliest` are left out."""
    files = [folder / SAMPLES_FILE]
    if not files[0].exists():  # `pull` was interrupted before it made one
        files = sorted(folder.glob(f"{HOSTS_FOLDER}/*/attempt_*/{SAMPLES_FILE}"))
    figures: dict[tuple[str, int | None, str], list[Point]] = defaultdict(list)
    bad_count = 0
    for line in (line for file in files for line in read_lines(file, problems)):
        try:
            sample = parse_json(line)
            node = str(sample["node"])
            wall = float(sample["wall"])
            values = [
                (source.get("index"), load.name, float(source[load.name]))
                for load in LOAD_FIGURES
                for source in (sample.get("gpus", ()) if load.is_gpu else (sample,))
                if source.get(load.name) is not None
            ]
        except ERRORS:
            bad_count += 1
            continue
        if wall >= earliest:
            for index, name, value in values:
                figures[node, index, name].append(Point(wall, 0, value))
    if bad_count:
        problems.add(SAMPLES_FILE, f"{bad_count:,} lines are no samples")
    series: dict[str, dict[int | None, dict[str, Series]]] = {}
    for (node, index, name), points in figures.items():
        members = series.setdefault(node, {})
        found = reduced(points, max_points)
        members.setdefault(index, {})[name] = Series(found.times, (), found.values)
    return tuple(
        NodeLoad(
            node,
            members.get(None, {}),
            tuple(GpuLoad(i, members[i]) for i in sorted(i for i in members if i is not None)),
        )
        for node, members in sorted(series.items(), key=lambda item: natural_key(item[0]))
    )
