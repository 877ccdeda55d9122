"""Metrics in a page: for each attempt a line, and a band over its ranks or its own lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.core.history.run_data import Metric, RunData, Series
from runner.core.text import per_second, printable
from runner.ui.page.columns import rounded, series_columns

MAX_NUMBERS = 600_000
"""Numbers of all metrics of a page, about."""

MAX_POINTS, MIN_POINTS = 2000, 50
MAX_METRICS = 300


def metrics(run: RunData, origin: float, run_count: int) -> list[dict[str, Any]]:
    """Return the metrics of a run: loss and rate first, as they come after that."""
    chosen = sorted(run.metrics, key=_order)[:MAX_METRICS]
    lines = sum(len(each.by_attempt) + len(each.spread) for each in chosen)
    limit = MAX_NUMBERS // (run_count * 5 * max(1, lines))
    return [_metric(each, origin, max(MIN_POINTS, min(MAX_POINTS, limit))) for each in chosen]


def _order(metric: Metric) -> int:
    return {"loss": 0, "rate": 1}.get(metric.name, 2)


def _metric(metric: Metric, origin: float, limit: int) -> dict[str, Any]:
    attempts = sorted({*metric.by_attempt, *metric.spread})
    unit = printable(metric.unit)
    return {
        "name": printable(metric.name),
        "unit": per_second(unit) if metric.name == "rate" and unit else unit,
        "rank": metric.rank,
        "ranks": metric.rank_count,
        "last": rounded(metric.last),
        "least": rounded(metric.least),
        "most": rounded(metric.most),
        "lines": [
            {
                "attempt": number,
                "own": series_columns(metric.by_attempt.get(number, Series()), origin, limit),
                "spread": series_columns(metric.spread.get(number, Series()), origin, limit),
            }
            for number in attempts
        ],
    }


def progress(
    step: int, steps: int | None, rate: float | None, unit: str, left_s: float | None
) -> dict[str, Any]:
    """Return how far a run is, and how fast."""
    return {
        "step": step,
        "steps": steps,
        "rate": rounded(rate),
        "unit": per_second(printable(unit)) if unit else "per s",
        "left_s": rounded(left_s),
    }


def time_left(run: RunData) -> float | None:
    """Return the seconds that the steps to come take, by the pace of the last attempt's end."""
    if run.step is None or run.steps is None or run.verdict is not None:
        return None
    for metric in run.metrics:
        if metric.by_attempt:
            pace = _pace(metric.by_attempt[max(metric.by_attempt)])
            if pace is not None:
                return max(0.0, (run.steps - run.step) * pace)
    return None


def _pace(series: Series) -> float | None:
    """Return the seconds of a step, over the last third of a series."""
    known: Sequence[tuple[float, int]] = [
        (time, step)
        for time, step in zip(series.times, series.steps, strict=False)
        if time is not None
    ]
    recent = known[-max(2, len(known) // 3) :]
    if len(recent) < 2 or recent[-1][1] <= recent[0][1]:  # noqa: PLR2004 (two ends)
        return None
    return (recent[-1][0] - recent[0][0]) / (recent[-1][1] - recent[0][1])
