"""The page itself: what the template shows of each run, and the file that it becomes.

Nothing but its own script can run in it, and nothing can be loaded into it.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from runner.core.history.comparison import code_text, flat_config, gpu_hours, set_values
from runner.core.history.run_data import LOAD_FIGURES, LoadFigure, RunData, Series
from runner.core.outcome.first_failure import failure_text
from runner.core.shell import quote, this_program
from runner.core.text import (
    counted,
    format_age,
    format_duration,
    format_size,
    per_second,
    printable,
    printable_lines,
)
from runner.ui.comparison import cell_text, compare_runs
from runner.ui.figures import number_text
from runner.ui.layout import fold_names
from runner.ui.page.timeline import event_text, launch_time, timeline

MAX_LOG_CHARS = 4_000_000  # on a page: where there are many logs, each is shorter

MAX_METRICS = 24
MAX_LINES = 8
"""Beyond so many GPUs or hosts, a chart has the least, the mean and the most of them."""

GRID = 400  # points of a line that is made of others

FILTERS = {
    "age": format_age,
    "code": code_text,
    "counted": counted,
    "duration": format_duration,
    "event_text": event_text,
    "failure": failure_text,
    "flat": flat_config,
    "fold_names": fold_names,
    "gpu_hours": gpu_hours,
    "number": number_text,
    "quote": quote,
    "set_values": set_values,
    "size": format_size,
    "timeline": timeline,
}

Chart = dict[str, Any]
Points = Sequence[tuple[float, float | None]]


def render_page(
    runs: Sequence[RunData],
    *,
    before: RunData | None = None,
    defaults: Mapping[str, str] | None = None,
    refresh_s: int = 0,
) -> str:
    """Return the page of these runs; a browser reads it again every `refresh_s` while one is on.

    One run is compared with that `before`. `defaults` are the texts of keys nobody has to set.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    compared = [before, *runs] if before and len(runs) == 1 else list(runs)
    rows = compare_runs(compared)
    names = [name for name in rows[0] if name != "run"]
    differences = {name: [cell_text(name, row[name]) for row in rows] for name in names}
    style = _asset("vendor/uplot/uPlot.min.css") + _asset("page.css")
    script = _asset("vendor/uplot/uPlot.iife.min.js") + _asset("page.js")
    policy = (
        f"default-src 'none'; style-src {_hash_source(style)}; script-src {_hash_source(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    environment = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        finalize=lambda it: it if isinstance(it, Markup) else printable_lines(str(it)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    template = environment.get_template("page.html.j2")
    return template.render(
        runs=runs,
        policy=policy,
        refresh_s=refresh_s,
        style=style,
        script=script,
        charts={"metrics": _metric_charts(runs)[:MAX_METRICS], "load": _load_charts(runs)},
        compared=compared,
        differences=differences,
        defaults=defaults or {},
        log_chars=MAX_LOG_CHARS // max(1, sum(len(run.logs) for run in runs)),
        program=this_program(),
    )


def _asset(path: str) -> str:
    return files(__package__).joinpath(path).read_text(encoding="utf-8")


def _hash_source(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _metric_charts(runs: Sequence[RunData]) -> list[Chart]:
    """Return a chart for each metric, with a line for each run: loss and rate first."""
    charts: dict[str, Chart] = {}
    for number, run in enumerate(runs):
        for metric in run.metrics:
            unit = metric.unit
            if metric.name == "rate" and unit:
                unit = per_second(unit)
            chart = charts.setdefault(metric.name, _chart(metric.name, unit, "step"))
            values: dict[float, float | None] = {}
            for _, series in sorted(metric.by_attempt.items()):
                values.update(zip(series.at, series.values, strict=True))  # repeated: the last
            chart["lines"].append(_line(run.run_id, number, sorted(values.items())))
    first = {"loss": 0, "rate": 1}
    return [charts[name] for name in sorted(charts, key=lambda name: first.get(name, 2))]


def _load_charts(runs: Sequence[RunData]) -> list[Chart]:
    """Return a chart for each figure: of one run its GPUs or hosts, of several the mean of each."""
    charts = []
    for figure in LOAD_FIGURES:
        chart = _chart(figure.title, figure.unit, "time")
        for number, run in enumerate(runs):
            members = _members(run, figure)
            if members and len(runs) > 1:
                members = {run.run_id: _spread(members)["mean"]}
            elif len(members) > MAX_LINES:
                members = _spread(members)
            for place, (label, points) in enumerate(members.items()):
                chart["lines"].append(_line(label, number + place, points))
        if chart["lines"]:
            charts.append(chart)
    return charts


def _chart(title: str, unit: str, x: str) -> Chart:
    return {"title": printable(title), "unit": printable(unit), "x": x, "lines": []}


def _line(label: str, colour: int, points: Points) -> Chart:
    values = [
        None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
        for _, value in points
    ]
    table = [[round(at, 2) for at, _ in points], values]
    return {"label": printable(label), "colour": colour, "table": table}


def _members(run: RunData, figure: LoadFigure) -> dict[str, Points]:
    """Return the figure of each GPU or host that has it, by time after the launch."""
    members: dict[str, Points] = {}
    origin = launch_time(run)
    for node in run.loads:
        sources = {node.node: node.series}
        if figure.is_gpu:
            sources = {f"{node.node} GPU {gpu.index}": gpu.series for gpu in node.gpus}
        for label, by_name in sources.items():
            series = by_name.get(figure.name, Series())
            pairs = zip(series.at, series.values, strict=True)
            points = [(at - origin, value) for at, value in pairs]
            if points:
                members[label] = sorted(points, key=lambda point: point[0])
    return members


def _spread(members: Mapping[str, Points]) -> dict[str, Points]:
    """Return least, mean and most of all members at each time."""
    import numpy as np

    columns = [np.array(points, dtype=float).T for points in members.values()]
    first = min(times[0] for times, _ in columns)
    last = max(times[-1] for times, _ in columns)
    grid = np.linspace(first, last, GRID)
    rows = [np.interp(grid, times, values, np.nan, np.nan) for times, values in columns]
    known = np.ma.masked_invalid(rows)
    figures = {"least": known.min(axis=0), "mean": known.mean(axis=0), "most": known.max(axis=0)}
    return {
        name: [*zip(grid.tolist(), row.filled(np.nan).tolist(), strict=True)]
        for name, row in figures.items()
    }
