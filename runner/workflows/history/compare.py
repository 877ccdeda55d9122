"""Comparison of runs on record, in an order of the user's choice."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from runner.control.history.run_reader import METRICS, read_run
from runner.control.record.metrics_record import METRICS_FILE
from runner.core.errors import ConfigError, Problem
from runner.core.history.comparison import ARGUMENTS, Comparison, RunSummary, compare_runs
from runner.core.model.results import SweepRun
from runner.core.model.spec import LaunchRequest
from runner.core.text import join_some
from runner.ui.layout import message_width
from runner.ui.reports.comparison_table import render_comparison
from runner.ui.reports.tables import render_sweep

MAX_POINTS = 50
"""Of a series: a comparison has the last, the least and the most alone."""

FIGURES: dict[str, Callable[[RunSummary], float | str | None]] = {
    "started": lambda run: run.started,
    "duration": lambda run: run.duration,
    "gpu_hours": lambda run: run.gpu_hours,
    "least_loss": lambda run: run.least_loss,
    "state": lambda run: run.state,
    "step": lambda run: run.step,
    "run": lambda run: run.run_id,
}
"""What runs can be sorted by beside metrics and keys of the configuration."""


def compared(folders: Sequence[Path], sort: str = "") -> Comparison:
    """Return the comparison of runs on record; raise ConfigError for an order that is none."""
    read = (
        read_run(folder, max_points=MAX_POINTS, parts=frozenset({METRICS})) for folder in folders
    )
    comparison = compare_runs([*read])
    return sorted_runs(comparison, sort) if sort else comparison


def sweep_text(requests: Sequence[LaunchRequest], runs: Sequence[SweepRun]) -> str:
    """Return what became of the runs of a sweep: a comparison of those that print metrics."""
    folders = [
        request.run_dir for request in requests if (request.run_dir / METRICS_FILE).is_file()
    ]
    if not folders:
        return render_sweep(runs, is_planned=False)
    comparison = compared(folders)
    table = render_comparison(comparison, message_width() - 1)
    known = {run.run_id for run in comparison.runs}
    return f"{table}\n{render_sweep(runs, is_planned=False, compared=known)}"


def sorted_runs(comparison: Comparison, sort: str) -> Comparison:
    """Return the runs by a figure, the least first; with "-" before it the most; unknown last."""
    key = sort.removeprefix("-")
    figure = _figure(comparison, key)
    known = [run for run in comparison.runs if _rank(figure(run)) is not None]
    known.sort(key=lambda run: _rank(figure(run)) or (), reverse=sort.startswith("-"))
    unknown = [run for run in comparison.runs if _rank(figure(run)) is None]
    return replace(comparison, runs=(*known, *unknown))


def _figure(comparison: Comparison, key: str) -> Callable[[RunSummary], float | str | None]:
    if key in FIGURES:
        return FIGURES[key]
    if key in comparison.metrics:
        return lambda run: run.metrics.get(key)
    for name in (key, f"{ARGUMENTS}.{key}"):
        if name in comparison.keys:
            return lambda run: run.config.get(name)
    legal = [*FIGURES, *comparison.metrics, *comparison.keys]
    near = difflib.get_close_matches(key, legal, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?\n" if near else ""
    hint += f"there are {join_some(legal, 20)}"
    message = f"no run has {key!r}, or it is the same in all of them"
    raise ConfigError([Problem("--sort", message, hint)])


def _rank(value: float | str | None) -> tuple[bool, float, str] | None:
    """Return by what a value is sorted: numbers before texts; None for no value."""
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except ValueError:
        return True, 0.0, str(value)
    return None if math.isnan(number) else (False, number, "")
