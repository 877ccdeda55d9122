"""Load of nodes and GPUs in a page: each figure on one grid of times, for all nodes and for each.

A figure of a node is the mean of its GPUs, with the least and the most of them; that of all nodes
the mean of all, likewise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.core.history.run_data import NodeLoad, RunData, Series
from runner.core.text import printable
from runner.ui.page.columns import relative, rounded

if TYPE_CHECKING:
    import numpy as np

    Values = np.ndarray[Any, np.dtype[np.float64]]

MAX_BINS, MIN_BINS = 600, 60
MAX_NUMBERS = 500_000
"""Numbers of all loads of a page, about: a node has fewer points where there are many."""

MAX_GPU_SOURCES = 64
"""Beyond so many GPUs, the nodes alone can be picked."""

MAX_NODE_SOURCES = 400

GPU_FIGURES = ("utilization", "memory_used", "power_w", "temperature_c")
HOST_FIGURES = (*("cpu", "memory_used", "net_received", "net_sent", "disk_read", "disk_written"),)


@dataclass(frozen=True)
class _Grid:
    """Bins of the same length between the first and the last sample."""

    start: float
    length: float
    count: int


def load(run: RunData, origin: float, run_count: int) -> dict[str, Any]:
    """Return the grid `t`, and for each source its figures as columns v, lo, hi."""
    grid = _grid(run.loads, run_count)
    if grid is None:
        return {"t": [], "step": 0, "sources": [], "throttled": []}
    middles = [grid.start + grid.length * (number + 0.5) for number in range(grid.count)]
    sources = [_source("all nodes", run.loads, grid)] if len(run.loads) > 1 else []
    sources += [_source(each.node, [each], grid) for each in run.loads[:MAX_NODE_SOURCES]]
    if 1 < sum(len(each.gpus) for each in run.loads) <= MAX_GPU_SOURCES:
        sources += [
            {
                "name": printable(f"{node.node} GPU {gpu.index}"),
                "figures": _figures("gpu.", GPU_FIGURES, [gpu.series], grid),
            }
            for node in run.loads
            for gpu in node.gpus
        ]
    return {
        "t": [relative(time, origin) for time in middles],
        "step": rounded(grid.length),
        "sources": sources,
        "throttled": _throttled(run.loads, origin),
        "errors": [
            printable(f"{each.node}: {each.gpu_error}") for each in run.loads if each.gpu_error
        ],
    }


def _grid(loads: Sequence[NodeLoad], run_count: int) -> _Grid | None:
    every = [series for node in loads for series in _series_of(node) if series.times]
    ends = [time for series in every for time in (series.times[0], series.times[-1])]
    times = [time for time in ends if time is not None]
    if not times:
        return None
    columns = len(GPU_FIGURES) * 3 + len(HOST_FIGURES)
    fitting = MAX_NUMBERS // (run_count * columns * (len(loads) + 1))
    longest = max(len(series.times) for series in every)
    count = max(1, min(MAX_BINS, max(MIN_BINS, fitting), longest))
    start, end = min(times), max(times)
    return _Grid(start, max((end - start) / count, 1e-3), count)


def _series_of(node: NodeLoad) -> Iterable[Series]:
    yield from node.series.values()
    for gpu in node.gpus:
        yield from gpu.series.values()


def _source(name: str, loads: Sequence[NodeLoad], grid: _Grid) -> dict[str, Any]:
    gpus = [gpu.series for node in loads for gpu in node.gpus]
    hosts = [node.series for node in loads]
    figures = _figures("gpu.", GPU_FIGURES, gpus, grid)
    figures.update(_figures("", HOST_FIGURES, hosts, grid))
    return {"name": printable(name), "figures": figures}


def _figures(
    prefix: str, names: Iterable[str], members: Sequence[Any], grid: _Grid
) -> dict[str, Any]:
    figures = {}
    for name in names:
        series = [each[name] for each in members if name in each and each[name].times]
        if series:
            figures[f"{prefix}{name}"] = _on_grid(series, grid)
    return figures


def _on_grid(members: Sequence[Series], grid: _Grid) -> dict[str, Any]:
    """Return mean, least and most of several series in each bin; lo and hi are [] for none."""
    import numpy as np

    total, number = np.zeros(grid.count), np.zeros(grid.count)
    low, high = np.full(grid.count, np.inf), np.full(grid.count, -np.inf)
    for series in members:
        times = np.array(series.times, dtype=float)
        values = np.array(series.values, dtype=float)
        known = np.isfinite(times) & np.isfinite(values)
        bins = np.clip((times[known] - grid.start) // grid.length, 0, grid.count - 1).astype(int)
        total += np.bincount(bins, weights=values[known], minlength=grid.count)
        number += np.bincount(bins, minlength=grid.count)
        np.minimum.at(low, bins, _column(series.low, values)[known])
        np.maximum.at(high, bins, _column(series.high, values)[known])
    with np.errstate(invalid="ignore"):
        mean = [rounded(float(value)) for value in total / number]
    if len(members) == 1 and not (members[0].low or number.max() > 1):
        return {"v": mean, "lo": [], "hi": []}
    return {
        "v": mean,
        "lo": [rounded(float(v)) for v in low],
        "hi": [rounded(float(v)) for v in high],
    }


def _column(column: Sequence[float | None], values: Values) -> Values:
    import numpy as np

    if not column:
        return values
    found = np.array(column, dtype=float)
    return np.where(np.isfinite(found), found, values)


def _throttled(loads: Iterable[NodeLoad], origin: float) -> list[list[Any]]:
    """Return when clocks of a GPU were lowered: its name, from, to, and why."""
    found = ((node.node, gpu) for node in loads for gpu in node.gpus)
    return [
        [f"{printable(node)} GPU {gpu.index}", *(relative(t, origin) for t in span), printable(why)]
        for node, gpu in found
        for *span, why in gpu.throttled
    ]
