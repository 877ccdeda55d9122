"""Data of a page: what it draws of each run, ready for JSON, with every text made printable."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from runner.core.history.comparison import value_text
from runner.core.history.run_data import LogTail, RunData, flat_config
from runner.core.protocol.events import Event
from runner.core.text import format_size, printable, printable_lines
from runner.ui.page import summary
from runner.ui.page.differences import differences
from runner.ui.page.load import load
from runner.ui.page.metric_data import metrics, progress, time_left
from runner.ui.page.timeline import timeline

DATA_VERSION = 1

MAX_LOG_TEXT = 4_000_000
"""Characters of all log tails of a page, about: beyond that, each is shorter."""

MIN_LOG_TEXT, MAX_LOGS = 400, 2500


def page_data(runs: Sequence[RunData], now: float | None = None) -> dict[str, Any]:
    """Return what a page draws of these runs; `now` is the time that its figures are of."""
    made_at = time.time() if now is None else now
    return {
        "version": DATA_VERSION,
        "made_at": rounded_time(made_at),
        "differences": differences(runs, [summary.state_of(run) for run in runs]),
        "runs": [_run(run, made_at, len(runs)) for run in runs],
    }


def rounded_time(wall: float | None) -> float | None:
    """Return a time since 1970, to the millisecond."""
    return None if wall is None else round(wall, 3)


def _run(run: RunData, now: float, run_count: int) -> dict[str, Any]:
    is_on = run.verdict is None and run.ended_at is None
    origin = _origin(run)
    end = run.ended_at or max(origin, _last_seen(run) or (now if is_on else origin))
    return {
        "id": printable(run.run_id),
        "task": printable(run.task),
        "state": summary.state_of(run),
        "is_on": is_on,
        "launched_at": rounded_time(run.launched_at),
        "ended_at": rounded_time(run.ended_at),
        "origin": rounded_time(origin),
        "facts": summary.facts(run),
        "progress": _progress(run),
        "failure": summary.first_failure(run),
        "commands": summary.next_commands(run),
        "timeline": timeline(run, origin, end, is_on=is_on),
        "metrics": metrics(run, origin, run_count),
        "load": load(run, origin, run_count),
        "logs": _logs(run.logs, run_count),
        "config": _config(run),
        "problems": [printable(problem) for problem in run.problems],
    }


def _origin(run: RunData) -> float:
    """Return the launch, or the first that is known of the run."""
    if run.launched_at is not None:
        return run.launched_at
    return run.events[0].wall if run.events else 0.0


def _last_seen(run: RunData) -> float | None:
    """Return the time of the last that is on record."""
    events: Sequence[Event] = run.events
    times = [events[-1].wall] if events else []
    lines = [line for metric in run.metrics for line in metric.by_attempt.values()]
    loads = [series for node in run.loads for series in node.series.values()]
    ends = [series.times[-1] for series in (*lines, *loads) if series.times]
    times += [each for each in ends if each is not None]
    return max(times, default=None)


def _progress(run: RunData) -> dict[str, Any] | None:
    if run.step is None:
        return None
    rate = next((metric for metric in run.metrics if metric.name == "rate"), None)
    last, unit = (rate.last, rate.unit) if rate else (None, "")
    return progress(run.step, run.steps, last, unit, time_left(run))


def _logs(logs: Sequence[LogTail], run_count: int) -> list[dict[str, Any]]:
    shown = [log for log in logs if log.text.strip()][:MAX_LOGS]
    limit = max(MIN_LOG_TEXT, MAX_LOG_TEXT // (run_count * max(1, len(shown))))
    return [
        {
            "node": printable(log.node),
            "attempt": log.attempt,
            "source": printable(log.source),
            "stream": printable(log.stream),
            "size": format_size(log.size),
            "text": printable_lines(log.text[-limit:]),
        }
        for log in shown
    ]


def _config(run: RunData) -> list[list[str]]:
    """Return each key with its value."""
    return [
        [printable(key), printable(value_text(value))]
        for key, value in flat_config(run.config).items()
    ]
