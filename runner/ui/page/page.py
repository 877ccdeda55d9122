"""Page of runs: what the template shows of each run, and the file that it becomes.

Nothing but its own script can run in it, and nothing can be loaded into it.
"""

from __future__ import annotations

import base64
import hashlib
import math
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from runner.core.errors import fold_names
from runner.core.history import (
    LOAD_FIGURES,
    LoadFigure,
    RunData,
    code_text,
    flat_config,
    gpu_hours,
    set_values,
)
from runner.core.outcome.attempt_events import end_text, node_stops, stop_before
from runner.core.shell import quote, this_program
from runner.core.wire import events
from runner.core.wire.events import EVENT_TYPES, Event
from runner.core.wire.states import Reason, State
from runner.core.wire.text import (
    counted,
    describe_exit,
    format_age,
    format_duration,
    format_size,
    per_second,
    printable,
    printable_lines,
)
from runner.ui.comparison import cell_text, compare_runs
from runner.ui.layout import number_text

MAX_LOG_CHARS = 4_000_000  # on a page: where there are many logs, each is shorter

MAX_METRICS = 24
MAX_LINES = 8
"""Beyond so many GPUs or hosts, a chart has the least, the mean and the most of them."""

GRID = 400  # points of a line that is made of others

KINDS = {body: name.replace("_", " ") for name, body in EVENT_TYPES.items()}

STARTS = (events.ProgramStarted, events.RankStarted, events.HubJoined)
"""Events that the bars show."""

FAULTS = (events.PeerLost, events.HostLost, events.EndUnverified, events.Stalled)

STATES = {State.SUCCEEDED: "succeeded", State.FAILED: "failed", State.STUCK: "failed"}

MAX_EVENT_TEXT = 400

Chart = dict[str, Any]
Points = Sequence[tuple[float, float | None]]


def render_page(runs: Sequence[RunData], *, before: RunData | None = None) -> str:
    """Return the page of these runs; one run is compared with that `before`."""
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
        style=style,
        script=script,
        charts={"metrics": _metric_charts(runs)[:MAX_METRICS], "load": _load_charts(runs)},
        compared=compared,
        differences=differences,
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
    for label, series in run.loads.get(figure.title, {}).items():
        pairs = zip(series.at, series.values, strict=True)
        if points := [(at - origin, value) for at, value in pairs]:
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


@dataclass
class Bar:
    """A node's work in an attempt; its state is also its colour."""

    start: float
    end: float | None = None
    state: str = ""


@dataclass
class Row:
    """A node: a bar for each attempt, and the faults of the node and of its ranks."""

    bars: dict[int, Bar] = field(default_factory=dict)
    marks: list[Event] = field(default_factory=list)


@dataclass
class Timeline:
    """All nodes between two times, and the events that are no usual starts, True for a fault."""

    start: float
    end: float
    rows: dict[str, Row]
    events: list[tuple[Event, bool]]


def launch_time(run: RunData) -> float:
    """Return the launch, or the first that is known of the run."""
    if run.launched_at is not None:
        return run.launched_at
    return run.events[0].wall if run.events else 0.0


def timeline(run: RunData) -> Timeline:
    """Return the timeline of a run, its nodes in the order of their ranks."""
    start = launch_time(run)
    end = run.ended_at
    if end is None:
        seen = run.events[-1].wall if run.events else start
        end = seen if run.verdict else max(seen, time.time())
    stops = node_stops(run.events)
    rows = {share.node: Row() for plan in reversed(run.plans) for share in plan.nodes}
    told = []
    for event in run.events:
        body = event.body
        row = rows.setdefault(event.node, Row()) if event.node else Row()
        is_fault = isinstance(body, FAULTS)
        if isinstance(body, (events.ProgramStarted, events.RankStarted)):
            row.bars.setdefault(event.attempt, Bar(event.wall))
        bar = row.bars.get(event.attempt) or Bar(event.wall)
        was_stopped = stop_before(event, stops) is not None
        if isinstance(body, events.RankExited) and not was_stopped:
            is_fault = bool(body.code) or body.signal not in {None, signal.SIGTERM}
        elif isinstance(body, events.ProgramExited):
            bar.end = event.wall
            if was_stopped:
                bar.state = "stopped"
            elif body.code is not None or body.signal is not None:
                bar.state = "failed" if body.code or body.signal else "succeeded"
        elif isinstance(body, (events.Ended, events.HostLost)):
            bar.end = bar.end or event.wall
            bar.state = bar.state or STATES.get(getattr(body, "state", State.FAILED), "stopped")
        if is_fault:
            row.marks.append(event)
        if not isinstance(body, STARTS):
            told.append((event, is_fault))
    for row in rows.values():
        for bar in row.bars.values():
            bar.state = bar.state or ("unseen" if run.verdict else "running")
            bar.end = max(bar.start, bar.end or end)
    return Timeline(start, max(end, start + 1e-3), rows, told)


def event_text(event: Event) -> str:
    body = event.body
    if isinstance(body, events.RankExited):
        how = describe_exit(body.code, body.signal)
        texts = [f"rank {body.rank} {how}", body.error, body.exception]
    elif isinstance(body, events.ProgramExited):
        texts = [f"program {describe_exit(body.code, body.signal)}", body.error]
    elif isinstance(body, events.Stalled):
        texts = [f"no progress for {format_age(body.seconds)}", body.problem]
    elif isinstance(body, events.Ended):
        texts = [f"ended: {body.state.value}", end_text(body)]
    else:
        texts = [KINDS[type(body)]]
        texts.append(str(getattr(body, "peer", "")))
        reason = getattr(body, "reason", "")
        texts.append(reason.text if isinstance(reason, Reason) else reason)
    return ", ".join(filter(None, texts))[:MAX_EVENT_TEXT]


FILTERS = {
    "age": format_age,
    "code": code_text,
    "counted": counted,
    "duration": format_duration,
    "event_text": event_text,
    "flat": flat_config,
    "fold_names": fold_names,
    "gpu_hours": gpu_hours,
    "number": number_text,
    "quote": quote,
    "set_values": set_values,
    "size": format_size,
    "timeline": timeline,
}
