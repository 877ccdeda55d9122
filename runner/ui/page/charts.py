"""Charts of a page: columns of numbers for uPlot, of what ranks print and of the load of hosts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from runner.core.history.run_data import LOAD_FIGURES, Metric, RunData, Series
from runner.core.text import per_second, printable

if TYPE_CHECKING:
    import numpy as np

    Matrix = np.ndarray[Any, np.dtype[np.float64]]

MAX_METRICS = 24
MAX_LINES = 8
"""Beyond so many GPUs or hosts, a chart has the least, the mean and the most of them."""

BINS = 400

Number = int | float | None
Columns = list[list[Number]]


def metric_charts(runs: Sequence[RunData], origins: Sequence[float]) -> list[dict[str, Any]]:
    """Return a chart for each metric, with a line for each run: loss and rate first."""
    by_name: dict[str, list[tuple[int, Metric]]] = {}
    for number, run in enumerate(runs):
        for metric in run.metrics:
            by_name.setdefault(metric.name, []).append((number, metric))
    first = {"loss": 0, "rate": 1}
    names = sorted(by_name, key=lambda name: first.get(name, 2))
    charts = []
    for name in names[:MAX_METRICS]:
        found = by_name[name]
        lines = [_attempts(metric) for _, metric in found]
        by_step = all(series.steps for line in lines for series in line)
        unit = found[0][1].unit
        columns = [
            _step_columns(line) if by_step else _time_columns(line, origins[number])
            for (number, _), line in zip(found, lines, strict=True)
        ]
        charts.append(
            {
                "title": printable(name),
                "unit": printable(per_second(unit) if name == "rate" and unit else unit),
                "x": "step" if by_step else "time",
                "labels": [printable(runs[number].run_id) for number, _ in found],
                "colours": [number for number, _ in found],
                "tables": columns,
            }
        )
    return charts


def _attempts(metric: Metric) -> list[Series]:
    return [series for _, series in sorted(metric.by_attempt.items()) if series.values]


def _step_columns(attempts: Iterable[Series]) -> Columns:
    """Return steps and values; a step that an attempt repeated has its last value."""
    values: dict[int, Number] = {}
    for series in attempts:
        values.update(zip(series.steps, map(rounded, series.values), strict=False))
    steps = sorted(values)
    return [[*steps], [values[step] for step in steps]]


def _time_columns(attempts: Iterable[Series], origin: float) -> Columns:
    points = [
        (round(time - origin, 2), rounded(value))
        for series in attempts
        for time, value in zip(series.times, series.values, strict=False)
        if time is not None
    ]
    points.sort(key=lambda point: point[0])
    return [[time for time, _ in points], [value for _, value in points]]


def load_charts(runs: Sequence[RunData], origins: Sequence[float]) -> list[dict[str, Any]]:
    """Return a chart for each figure of a load: of one run its GPUs or hosts, of several a mean."""
    charts = []
    for title, name, is_gpu, unit in LOAD_FIGURES:
        labels: list[str] = []
        colours: list[int] = []
        tables: list[Columns] = []
        for number, run in enumerate(runs):
            members = _members(run, name, is_gpu=is_gpu)
            if not members:
                continue
            times, rows = _on_grid([series for _, series in members], origins[number])
            names = [label for label, _ in members]
            if len(runs) > 1:
                names = [run.run_id]
                rows = _mean(rows)
            elif len(members) > MAX_LINES:
                names = ["least", "mean", "most"]
                rows = _spread(rows)
            labels += map(printable, names)
            colours += [number] if len(runs) > 1 else range(len(names))
            tables.append([times, *([rounded(float(v)) for v in row] for row in rows)])
        if tables:
            charts.append(
                {
                    "title": title,
                    "unit": unit,
                    "x": "time",
                    "labels": labels,
                    "colours": colours,
                    "tables": tables,
                }
            )
    return charts


def _members(run: RunData, name: str, *, is_gpu: bool) -> list[tuple[str, Series]]:
    members = []
    for node in run.loads:
        if is_gpu:
            found = [(f"{node.node} GPU {gpu.index}", gpu.series.get(name)) for gpu in node.gpus]
        else:
            found = [(node.node, node.series.get(name))]
        members += [(label, series) for label, series in found if series and series.times]
    return members


def _on_grid(members: Sequence[Series], origin: float) -> tuple[list[Number], Matrix]:
    """Return times after the launch, and for each series a row with its mean at each time."""
    import numpy as np

    times = [np.array(series.times, dtype=float) - origin for series in members]
    first = min(float(np.nanmin(each)) for each in times)
    last = max(float(np.nanmax(each)) for each in times)
    count = min(BINS, max(len(each) for each in times))
    length = max((last - first) / count, 1e-3)
    rows = np.full((len(members), count), np.nan)
    for row, (series, at) in enumerate(zip(members, times, strict=True)):
        values = np.array(series.values, dtype=float)
        known = np.isfinite(at) & np.isfinite(values)
        bins = np.clip((at[known] - first) // length, 0, count - 1).astype(int)
        number = np.bincount(bins, minlength=count)
        total = np.bincount(bins, weights=values[known], minlength=count)
        rows[row] = np.divide(total, number, out=rows[row], where=number > 0)
    middles = first + length * (np.arange(count) + 0.5)
    return [round(float(middle), 2) for middle in middles], rows


def _mean(rows: Matrix) -> Matrix:
    return _spread(rows)[1:2]


def _spread(rows: Matrix) -> Matrix:
    """Return least, mean and most of all rows; a time that no row knows has none."""
    import numpy as np

    known = np.isfinite(rows)
    number = known.sum(axis=0)
    unknown = number == 0
    least = np.where(known, rows, np.inf).min(axis=0)
    most = np.where(known, rows, -np.inf).max(axis=0)
    mean = np.where(known, rows, 0.0).sum(axis=0) / np.maximum(number, 1)
    found = np.stack([least, mean, most])
    found[:, unknown] = np.nan
    return found


def rounded(value: float | None) -> Number:
    """Return a number with 6 significant digits, None for what is no number."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() else short
