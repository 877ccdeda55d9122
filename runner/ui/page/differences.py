"""Differences between runs: what was set, which code ran, and what came out, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from runner.core.history.comparison import code_text, differing_values
from runner.core.history.run_data import RunData
from runner.core.text import counted, printable
from runner.ui.page.summary import duration_text, gpu_hours_text

ABSENT = "-"


def differences(runs: Sequence[RunData], states: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows of kind, name and a value for each run; rows of results also where they agree."""
    if len(runs) < 2:  # noqa: PLR2004 (nothing to compare)
        return []
    results = [_row("result", "state", states)]
    results += [_row("result", name, [of(run) for run in runs]) for name, of in _RESULTS]
    results += _metric_rows(runs)
    rows = [_row("code", name, [of(run) for run in runs]) for name, of in _CODE]
    return results + [row for row in (*rows, *_config_rows(runs)) if row["differs"]]


def _row(kind: str, name: str, values: Sequence[str]) -> dict[str, Any]:
    shown = [printable(value) or ABSENT for value in values]
    return {"kind": kind, "name": printable(name), "values": shown, "differs": len({*shown}) > 1}


def _of_plan(text: Callable[[Any], str]) -> Callable[[RunData], str]:
    return lambda run: text(run.plans[-1]) if run.plans else ""


_RESULTS: tuple[tuple[str, Callable[[RunData], str]], ...] = (
    ("duration", duration_text),
    ("GPU hours", gpu_hours_text),
    ("last step", lambda run: "" if run.step is None else str(run.step)),
)
_CODE: tuple[tuple[str, Callable[[RunData], str]], ...] = (
    ("task", lambda run: run.task),
    ("cluster", lambda run: run.cluster),
    ("nodes", _of_plan(lambda plan: counted(len(plan.nodes), "node"))),
    ("ranks", _of_plan(lambda plan: str(plan.world_size))),
    ("GPUs", lambda run: str(run.gpu_count)),
    ("attempts", lambda run: str(len(run.plans))),
    ("code", code_text),
    ("image", _of_plan(lambda plan: plan.image)),
    ("backend", _of_plan(lambda plan: plan.backend)),
)


def _metric_rows(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    by_run = [{metric.name: metric for metric in run.metrics} for run in runs]
    names = dict.fromkeys(name for metrics in by_run for name in metrics)
    rows = []
    for name in names:
        found = [metrics.get(name) for metrics in by_run]
        best = "most" if name == "rate" else "least"
        lasts = [_number(each.last) if each else "" for each in found]
        bests = [_number(getattr(each, best)) if each else "" for each in found]
        rows += [_row("result", f"{name}, last", lasts), _row("result", f"{name}, {best}", bests)]
    return rows


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _config_rows(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    return [
        _row("configuration", key, [value or "" for value in values])
        for key, values in differing_values(runs).items()
    ]
