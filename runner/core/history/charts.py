"""Charts of `plot`: the curves of one figure of several runs, over steps or over time."""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from runner.core.dataclass import dataclass
from runner.core.history.run_data import RunData, Series
from runner.core.text import per_second

STEP, TIME = "step", "time"
UTILIZATION = "gpu.utilization"
DEFAULT_FIGURES = ("loss", "rate", UTILIZATION)
MAX_BINS = 500
"""Points of a curve that is a mean over nodes or GPUs."""

UNITS = {
    "gpu.utilization": "%",
    "gpu.power_w": "W",
    "gpu.temperature_c": "°C",
    "cpu": "%",
    "gpu.memory_used": "GB",
    "memory_used": "GB",
    **dict.fromkeys(("net_received", "net_sent", "disk_read", "disk_written"), "MB/s"),
}
"""The figures of samples, which belong to no step, and their units."""

SCALES = {"GB": 1e9, "MB/s": 1e6}
PER_SECOND = (("GB/s", 1e3), ("MB/s", 1.0), ("kB/s", 1e-3))
"""Units of rates, and how many MB/s they are."""

Point = Tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """A figure of one run, in pieces that are not joined: one for each attempt."""

    run_id: str
    pieces: Tuple[Tuple[Point, ...], ...]


@dataclass(frozen=True)
class Chart:
    """A figure of several runs."""

    name: str
    unit: str
    x: str  # "step", or "time": since the launch
    curves: Tuple[Curve, ...] = field(default_factory=tuple)


def figure_names(runs: Sequence[RunData]) -> List[str]:
    """Return the names of all figures that runs have."""
    names = dict.fromkeys(metric.name for run in runs for metric in run.metrics)
    sampled = [name for name in UNITS if any(_sampled(run, name) for run in runs)]
    return [*names, *(name for name in sampled if name not in names)]


def make_chart(runs: Sequence[RunData], name: str, x: str) -> Chart:
    """Return the chart of a figure; its unit is that of the runs, where it is the same in all."""
    metrics = [metric for run in runs for metric in run.metrics if metric.name == name]
    if not metrics:
        curves = (Curve(run.run_id, _mean_piece(run, _sampled(run, name), name)) for run in runs)
        shown = tuple(curve for curve in curves if curve.pieces)
        return _in_fitting_unit(Chart(name, UNITS.get(name, ""), TIME, shown))
    units = {metric.unit for metric in metrics}
    unit = units.pop() if len(units) == 1 else ""
    curves = (Curve(run.run_id, _metric_pieces(run, name, x)) for run in runs)
    label = per_second(unit) if name == "rate" and unit else unit
    return Chart(name, label, x, tuple(curve for curve in curves if curve.pieces))


def _in_fitting_unit(chart: Chart) -> Chart:
    """Return a chart of MB/s in the unit in which its largest value reads best."""
    if chart.unit != "MB/s" or not chart.curves:
        return chart
    largest = max(abs(y) for curve in chart.curves for piece in curve.pieces for _, y in piece)
    unit, scale = next((each for each in PER_SECOND if largest >= each[1]), PER_SECOND[-1])
    curves = (
        Curve(c.run_id, tuple(tuple((x, y / scale) for x, y in piece) for piece in c.pieces))
        for c in chart.curves
    )
    return replace(chart, unit=unit, curves=tuple(curves))


def _metric_pieces(run: RunData, name: str, x: str) -> Tuple[Tuple[Point, ...], ...]:
    metric = next((each for each in run.metrics if each.name == name), None)
    by_attempt: Mapping[int, Series] = metric.by_attempt if metric else {}
    points = [_points(series, x, _zero(run, by_attempt.values())) for series in by_attempt.values()]
    return tuple(tuple(each) for each in points if each)


def _zero(run: RunData, series: Iterable[Series]) -> float:
    """Return the time of the launch, or else the first one that is known."""
    if run.launched_at is not None:
        return run.launched_at
    return min((t for each in series for t in each.times if t is not None), default=0.0)


def _points(series: Series, x: str, zero: float) -> List[Point]:
    if x == TIME:
        xs: List[Optional[float]] = [None if t is None else t - zero for t in series.times]
    else:
        xs = [float(step) for step in series.steps]
    return [
        (at, value)
        for at, value in zip(xs, series.values)  # noqa: B905 (Python 3.8)
        if at is not None and value is not None
    ]


def _sampled(run: RunData, name: str) -> List[Series]:
    """Return the series of a figure of samples: of all GPUs, or of all nodes."""
    if name not in UNITS:
        return []
    prefix, _, figure = name.rpartition(".")
    if prefix:
        loads: Iterable[Mapping[str, Series]] = (g.series for n in run.loads for g in n.gpus)
    else:
        loads = (node.series for node in run.loads)
    return [series[figure] for series in loads if figure in series]


def _mean_piece(run: RunData, series: Sequence[Series], name: str) -> Tuple[Tuple[Point, ...], ...]:
    """Return the mean of series whose times differ; of what is counted, the total would vary."""
    zero = _zero(run, series)
    points = [point for each in series for point in _points(each, TIME, zero)]
    if not points:
        return ()
    first, last = min(points)[0], max(points)[0]
    bin_count = max(1, min(MAX_BINS, max(len(each.times) for each in series)))
    width = (last - first) / bin_count or 1.0
    bins: Dict[int, List[float]] = {}
    for at, value in points:
        bins.setdefault(min(int((at - first) / width), bin_count - 1), []).append(value)
    scale = SCALES.get(UNITS[name], 1.0)
    centre: Callable[[int], float] = lambda number: first + (number + 0.5) * width  # noqa: E731
    means = [(centre(n), sum(bins[n]) / len(bins[n]) / scale) for n in sorted(bins)]
    return (tuple(point for point in means if all(map(math.isfinite, point))),)
