"""Comparison of runs: a row for each, as a table, as CSV and as JSON data."""

from __future__ import annotations

import csv
import difflib
import io
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from runner.core.errors import ConfigError, Problem
from runner.core.history.comparison import (
    ARGUMENTS,
    best_word,
    code_text,
    differing_values,
    gpu_hours,
)
from runner.core.history.run_data import Metric, RunData
from runner.core.text import format_duration, join_some, printable
from runner.ui.figures import number_text
from runner.ui.layout import COLUMN_GAP, aligned, wrap

LOSS = "loss"
NOT_FINITE = "NaN"
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 8
MAX_CELL = 40  # characters
DIGITS = 3  # of seconds and hours, after the point

STAYING = ("run", LOSS, "end", "code")
"""Columns that no terminal is too narrow for."""

NOT_IN_TABLES = ("exit_code", "started", "sweep")
HEADERS = {"seconds": "took", "gpu_hours": "GPU h", "gpus": "GPUs"}

Value = str | float | int | None
Row = dict[str, Value]


def compare_runs(runs: Sequence[RunData]) -> list[Row]:
    """Return which run each is, what differs in its keys, and what came of it.

    All have the same names: those of keys, of metrics and of columns. What is not known is None.
    """
    keys = differing_values(runs)
    names = {metric.name for run in runs for metric in run.metrics}
    rows = []
    for place, run in enumerate(runs):
        row: Row = dict.fromkeys(("run", "cluster", "task"))
        row.update({key: values[place] for key, values in keys.items()})
        metrics = {metric.name: metric for metric in run.metrics}
        for name in sorted(names, key=lambda name: (name != LOSS, name)):
            best = best_word(name)
            row[name] = _last(metrics.get(name))
            row[f"{best}_{name}"] = getattr(metrics.get(name), best, None)
        row["run"] = run.run_id  # only now: a metric may have any name
        row["cluster"] = run.cluster or None
        row["task"] = run.task or None
        code = run.verdict.exit_code if run.verdict else None
        state = run.verdict.state if run.verdict else None
        row["end"] = f"{state} ({code})" if code else state
        hours = gpu_hours(run)
        began = run.launched_at
        row["seconds"] = None if run.seconds is None else round(run.seconds, DIGITS)
        row["code"] = code_text(run) or None
        row["gpu_hours"] = None if hours is None else round(hours, DIGITS)
        row["step"] = run.step
        row["nodes"] = len(run.plans[-1].nodes) if run.plans else None
        row["gpus"] = run.gpu_count or None
        row["exit_code"] = code
        row["started"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)) if began else None
        row["sweep"] = run.sweep_id or None
        rows.append(row)
    needless = {name for name in rows[0] if all(row[name] is None for row in rows)}
    return [{name: row[name] for name in row if name not in needless} for row in rows]


def _last(metric: Metric | None) -> Value:
    if metric is None:
        return None
    return NOT_FINITE if metric.last is None else metric.last


def sort_runs(runs: Sequence[RunData], word: str) -> list[RunData]:
    """Return the runs by a column, the least first, with "-" before it the most; unknown last.

    Raises:
        ConfigError: There is no such column.
    """
    rows = compare_runs(runs)
    legal = {_header(name): name for name in rows[0]}
    name = word.removeprefix("-")
    column = name if name in rows[0] else legal.get(name)
    if column is None:
        near = difflib.get_close_matches(name, legal, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?\n" if near else ""
        hint += f"there are {join_some([*legal], 20)}"
        message = f"no run has {name!r}, or it is the same in all of them"
        raise ConfigError([Problem("--sort", message, hint)])
    ranks = [_rank(row[column]) for row in rows]
    known = [(rank, place) for place, rank in enumerate(ranks) if rank is not None]
    order = [place for _, place in sorted(known, reverse=word.startswith("-"))]
    order += [place for place, rank in enumerate(ranks) if rank is None]
    return [runs[place] for place in order]


def _rank(value: Value) -> tuple[bool, float, str] | None:
    """Return by what a value is sorted: numbers before texts; None for no value."""
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        return True, 0.0, str(value)
    return None if math.isnan(number) else (False, number, "")


def render_runs(runs: Sequence[RunData], width: int) -> str:
    """Return a table with a line for each run; columns without room are named below it.

    Results that are equal in all runs are left out, and so are the best values of metrics that are
    their last ones.
    """
    rows = compare_runs(runs)
    several = len({row.get("cluster") for row in rows}) > 1
    best = {
        f"{best_word(metric.name)}_{metric.name}": metric.name for r in runs for metric in r.metrics
    }
    columns: dict[str, list[str]] = {}
    commonest: dict[str, int] = {}  # how many rows have the value that most rows have
    for name in rows[0]:
        values = [row[name] for row in rows]
        commonest[name] = max(Counter(values).values())
        is_same = len(rows) > 1 and commonest[name] == len(rows)
        is_best = name in best and values == [row.get(best[name]) for row in rows]
        is_of_machines = several and name.startswith("cluster.")
        if name in NOT_IN_TABLES or is_of_machines or is_best or (is_same and name not in STAYING):
            continue
        texts = [_header(name), *(cell_text(name, value) for value in values)]
        cells = [f"{text[:MAX_CELL]}…" if len(text) > MAX_CELL else text for text in texts]
        if any(isinstance(value, (int, float)) for value in values):
            size = max(map(len, cells))
            cells = [cell.rjust(size) for cell in cells]
        columns[name] = cells
    if "code" in columns:
        commits = [text.partition(" ")[0] for text in columns["code"]]
        if len({*commits}) == len({*columns["code"]}):
            columns["code"] = commits
    keys = {"cluster", "task", *differing_values(runs)}

    def worth(name: str) -> tuple[int, int]:
        """Results are left out first, keys that differ in most rows last, after the duration."""
        if name in keys and 2 * commonest[name] <= len(rows):
            return 3, -commonest[name]
        return (1, -commonest[name]) if name in keys else (2 * (name == "seconds"), 0)

    left_out: list[str] = []
    for name in sorted((name for name in reversed(columns) if name not in STAYING), key=worth):
        if _width(columns) > width:
            left_out.insert(0, columns.pop(name)[0].strip())
    curves = ["", *map(_curve, runs)]
    if any(curves):
        pairs = zip(columns[LOSS], curves, strict=True)
        with_curves = {**columns, LOSS: [f"{text} {curve:{SPARK_WIDTH}}" for text, curve in pairs]}
        columns = with_curves if _width(with_curves) <= width else columns
    lines = aligned(zip(*columns.values(), strict=True), indent="")
    if left_out:
        told = f"left out, to fit: {join_some(left_out, 6)}; --csv has all"
        lines += wrap(told, width, hanging_margin="  ")
    return "\n".join(lines)


def _header(name: str) -> str:
    return printable(HEADERS.get(name, name.removeprefix(ARGUMENTS)))


def cell_text(name: str, value: Value) -> str:
    """Return the value of a column as tables have it."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return printable(value)
    return format_duration(value) if name == "seconds" else number_text(value)


def _curve(run: RunData) -> str:
    """Return the loss over all attempts in a few blocks."""
    series = [each for m in run.metrics if m.name == LOSS for each in m.by_attempt.values()]
    values = [v for each in series for v in each.values if v is not None and math.isfinite(v)]
    if len(values) < 2:  # noqa: PLR2004 (a curve)
        return ""
    least = min(values)
    step = (max(values) - least) / (len(SPARKS) - 1) or 1.0
    shown = min(SPARK_WIDTH, len(values))
    picked = [values[round(i * (len(values) - 1) / (shown - 1))] for i in range(shown)]
    return "".join(SPARKS[round((value - least) / step)] for value in picked)


def _width(columns: Mapping[str, Iterable[str]]) -> int:
    """Return how many columns of a terminal these take."""
    return sum(max(map(len, cells)) + COLUMN_GAP for cells in columns.values()) - COLUMN_GAP


def as_csv(rows: Sequence[Row]) -> str:
    """Return rows as CSV, as RFC 4180 has it."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(map(printable, rows[0]))
    for row in rows:
        values = row.values()
        writer.writerow([printable(each) if isinstance(each, str) else each for each in values])
    return out.getvalue()
