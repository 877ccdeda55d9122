"""Plots of runs on record: which figures they have, and what tells their curves apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.control.history.run_reader import LOADS, METRICS, read_run
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.history.charts import (
    DEFAULT_FIGURES,
    STEP,
    TIME,
    Chart,
    figure_names,
    make_chart,
)
from runner.core.history.comparison import ARGUMENTS, compare_runs
from runner.core.history.run_data import RunData
from runner.core.text import join_some, printable
from runner.workflows.history.incomplete_records import no_figures

MAX_POINTS = 1000
MAX_LABEL = 60  # characters of what differs


def load_runs(folders: Sequence[Path]) -> list[RunData]:
    """Return the metrics and samples of runs on record."""
    parts = frozenset({METRICS, LOADS})
    return [read_run(folder, max_points=MAX_POINTS, parts=parts) for folder in folders]


def charts_of(runs: Sequence[RunData], names: Sequence[str], x: str) -> list[Chart]:
    """Return the charts of figures by their names, else of those that most runs have.

    Raises:
        ConfigError: There is no such figure, or no such axis.
        NotReady: The runs have no figures at all.
    """
    if x not in (STEP, TIME):
        raise ConfigError([Problem("--x", f"must be {STEP} or {TIME}, not {x!r}")])
    known = figure_names(runs)
    if not known:
        raise no_figures("plot", runs)
    if unknown := [name for name in names if name not in known]:
        legal = join_some([printable(name) for name in known], 30)
        raise ConfigError([Problem("--metric", f"no run has {unknown[0]!r}", f"they have {legal}")])
    shown = [name for name in DEFAULT_FIGURES if name in known]
    charts = [make_chart(runs, name, x) for name in dict.fromkeys(names or shown or known[:3])]
    drawn = [chart for chart in charts if chart.curves]
    if not drawn:
        message = "what the runs printed has no finite numbers there"
        raise NotReady([Problem("plot", message, "--x step, or another --metric")])
    return drawn


def labels_of(runs: Sequence[RunData], charts: Sequence[Chart]) -> list[list[str]]:
    """Return the labels of the curves of each chart: run ids, and how their arguments differ."""
    labels = {}
    for run in compare_runs(runs).runs:
        words = [
            f"{key.removeprefix(ARGUMENTS + '.')}={value}"
            for key, value in run.config.items()
            if value is not None and key.startswith("task.")
        ]
        text = " ".join(words)
        text = f"{text[:MAX_LABEL]}…" if len(text) > MAX_LABEL else text
        labels[run.run_id] = f"{run.run_id}  {text}".rstrip()
    return [[labels[curve.run_id] for curve in chart.curves] for chart in charts]
