"""Table of compared runs: as wide as the terminal, or transposed; as CSV, and as JSON."""

from __future__ import annotations

import csv
import io
import itertools
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from runner.core.codec import encode
from runner.core.history.comparison import ARGUMENTS, Comparison, RunSummary
from runner.core.text import counted, format_duration, join_some, printable
from runner.ui.figures import number_text
from runner.ui.layout import COLUMN_GAP, fitting_columns, render_table, wrap

MAX_CELL = 40  # characters
MISSING = "-"
RESULTS = ("run", "end", "loss", "took")
"""The columns that no other one drives out."""

WRAPPED = ("differs in",)

Columns = dict[str, list[str]]


def render_comparison(comparison: Comparison, width: int) -> str:
    """Return the table of runs: a line for each, or, where these are too long, a column for each.

    Where there is no room for that either, the columns that tell the least are left out, and named.
    """
    columns = {header: cells for header, cells in _columns(comparison).items() if any(cells)}
    columns = {h: [cell or MISSING for cell in cells] for h, cells in columns.items()}
    lines = _rows(columns, width)
    if lines is None:
        headers, *rows = zip(*([h, *cells] for h, cells in columns.items()), strict=True)
        turned = {str(row[0]): [*map(str, row[1:])] for row in rows}
        is_unique = len(turned) == len(rows)
        lines = _rows({"run": [*map(str, headers[1:])], **turned}, width) if is_unique else None
    left_out: list[str] = []
    if lines is None:
        ranked = _by_information(columns)
        fitting = fitting_columns(ranked, width, WRAPPED)
        left_out = [header for header in ranked if header not in fitting]
        widths = {header: fitting[header] for header in columns if header in fitting}
        cells = zip(*(columns[header] for header in widths), strict=True)
        lines = [line for block in render_table(widths, [*cells]) for line in block]
    hidden = len(comparison.keys) - len(shown_keys(comparison))
    if hidden:
        lines.append(f"{counted(hidden, 'key')} of different clusters differ: --csv has them")
    if left_out:
        lines += wrap(f"left out, to fit: {join_some(left_out, 6)}; --csv has all", width, "", "  ")
    return "\n".join(lines)


def _rows(columns: Mapping[str, Sequence[str]], width: int) -> list[str] | None:
    """Return the lines of a table, None if it does not fit."""
    widths = fitting_columns(columns, width, WRAPPED)
    if len(widths) < len(columns) or sum(widths.values()) + COLUMN_GAP * len(widths) > width + 2:
        return None
    rows = [*zip(*columns.values(), strict=True)]
    return [line for block in render_table(widths, rows) for line in block]


def _by_information(columns: Columns) -> Columns:
    """Return the columns by what they tell: the results, and what differs the most of the keys.

    A column that has nothing of most runs, or one value alone, tells the least.
    """
    causes = {*itertools.takewhile(lambda header: header not in RESULTS[1:], columns)}

    def rank(header: str) -> tuple[int, float]:
        if header in RESULTS:
            return 0, RESULTS.index(header)
        cells = columns[header]
        known = [cell for cell in cells if cell not in (MISSING, "null")]
        share = len(known) / len(cells)
        if share < 1 / 2 or len({*known}) == 1:
            return 3, -share * _entropy(cells)
        return (1, -share * _entropy(cells)) if header in causes else (2, 0)

    return {header: columns[header] for header in sorted(columns, key=rank)}


def _entropy(cells: Sequence[str]) -> float:
    """Return the entropy of cells, in bits: how much one of them tells of which run it is."""
    shares = (count / len(cells) for count in Counter(cells).values())
    return -sum(share * math.log2(share) for share in shares)


def shown_keys(comparison: Comparison) -> list[str]:
    """Return the keys of the table: of different clusters, not what these are made of."""
    several = len({run.cluster for run in comparison.runs}) > 1
    return [key for key in comparison.keys if not (several and key.startswith("cluster."))]


def _columns(comparison: Comparison) -> Columns:
    """Return the cells below each header, those first that tell the most; "" for nothing."""
    runs = comparison.runs
    columns: Columns = {"run": [run.run_id for run in runs]}
    for name in ("cluster", "task"):
        cells = [getattr(run, name) for run in runs]
        if len({*cells}) > 1:
            columns[name] = cells
    named = headers(shown_keys(comparison), columns)
    cells_of = {
        header: [run.config.get(key) or "" for run in runs] for header, key in named.items()
    }
    own = [header for header, key in named.items() if key.startswith("task.")]
    columns.update((header, cells_of.pop(header)) for header in own)
    metrics = {name: [_metric(run, name) for run in runs] for name in comparison.metrics}
    if "loss" in metrics:
        columns["loss"] = metrics.pop("loss")
    columns["end"] = [_end(run) for run in runs]
    columns["took"] = [
        format_duration(s) if (s := run.duration) is not None else "" for run in runs
    ]
    columns["least loss"] = [_figure(run.least_loss) for run in runs]
    columns.update(cells_of)
    rate = metrics.pop("rate", None)
    columns.update((f"metric {n}" if n in columns else n, cells) for n, cells in metrics.items())
    if any(run.gpu_hours for run in runs):
        columns["GPU h"] = [_figure(run.gpu_hours) for run in runs]
    if comparison.code_differs:
        columns["code"] = [run.code for run in runs]
    if rate:
        columns["rate"] = rate
    short = {h: [_short(cell, h) for cell in cells] for h, cells in columns.items()}
    return {_short(header, ""): cells for header, cells in short.items()}


def headers(keys: Sequence[str], taken: Mapping[str, Any]) -> dict[str, str]:
    """Return each key by its header: of an argument of the task its name, where that is unique."""
    reserved = {*taken, "loss", "least loss", "end", "took", "GPU h", "code", "rate", "run"}
    found: dict[str, str] = {}
    for key in keys:
        name = key.removeprefix(f"{ARGUMENTS}.")
        found[key if name in reserved or name in keys else name] = key
    return found


def _short(text: str, header: str) -> str:
    text = printable(text)
    is_long = header not in {*WRAPPED, "run"} and len(text) > MAX_CELL
    return f"{text[: MAX_CELL - 1]}…" if is_long else text


def _end(run: RunSummary) -> str:
    if not run.state:
        return ""
    return run.state if run.exit_code in (0, None) else f"{run.state} ({run.exit_code})"


def _metric(run: RunSummary, name: str) -> str:
    if name not in run.metrics:
        return ""
    value = run.metrics[name]
    return "NaN" if value is None else number_text(value)


def _figure(value: float | None) -> str:
    return "" if value is None else number_text(value)


def as_csv(comparison: Comparison) -> str:
    """Return all that is known as CSV, as RFC 4180 has it: a line for each run."""
    out = io.StringIO()
    writer = csv.writer(out)
    fixed = ("run", "cluster", "task", "started", "state", "exit_code", "seconds", "gpu_hours")
    more = ("nodes", "gpus", "code", "step", "steps", "least_loss", "sweep")
    names = [n if n not in {*fixed, *more} else f"metric.{n}" for n in comparison.metrics]
    writer.writerow([*fixed, *more, *map(printable, names), *map(printable, comparison.keys)])
    for run in comparison.runs:
        started = "" if run.started is None else _iso(run.started)
        cells: list[Any] = [run.run_id, run.cluster, run.task, started, run.state, run.exit_code]
        cells += [_plain(run.duration), _plain(run.gpu_hours), run.nodes, run.gpus, run.code]
        cells += [run.step, run.steps, _plain(run.least_loss), run.sweep_id]
        for name in comparison.metrics:
            is_nan = name in run.metrics and run.metrics[name] is None
            cells.append("NaN" if is_nan else _plain(run.metrics.get(name)))
        cells += [run.config.get(key) for key in comparison.keys]
        writer.writerow(["" if cell is None else printable(str(cell)) for cell in cells])
    return out.getvalue()


def as_data(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the runs as JSON data."""
    return [encode(run) for run in comparison.runs]


def _plain(value: float | None) -> str | None:
    return None if value is None else repr(round(value, 6) if abs(value) > 1 else value)


def _iso(at: float) -> str:
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    except (ValueError, OverflowError, OSError):
        return ""
