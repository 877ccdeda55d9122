"""Comparison of runs as columns: for a table, for CSV and for JSON, and to sort by."""

from __future__ import annotations

import csv
import difflib
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from runner.core.errors import ConfigError, Problem
from runner.core.history.comparison import (
    ARGUMENTS,
    best_word,
    code_text,
    differing_values,
    gpu_hours,
)
from runner.core.history.run_data import Metric, RunData
from runner.core.text import counted, format_duration, join_some, printable
from runner.ui.figures import number_text
from runner.ui.layout import wrap

MAX_CELL = 40  # characters
GAP = 2
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 8

Value = str | float | int | None


@dataclass(frozen=True)
class Column:
    """A figure of all runs."""

    name: str
    values: tuple[Value, ...]  # None is unknown
    text: Callable[[Value], str] = str
    sparks: tuple[str, ...] = ()  # the curve beside each value
    stays: bool = False  # however narrow the terminal is
    is_number: bool = False
    is_shown: bool = True  # in the table
    key: str = ""  # of the configuration

    @property
    def cells(self) -> tuple[str, ...]:
        """The texts of a table."""
        texts = ["-" if value is None else self.text(value) for value in self.values]
        if self.sparks:
            texts = [f"{text} {spark}" for text, spark in zip(texts, self.sparks, strict=True)]
        return tuple(_short(printable(text)) for text in texts)


def compare_runs(runs: Sequence[RunData]) -> list[Column]:
    """Return the columns: which run, what differs in its keys, what came of it."""

    def column(name: str, of: Callable[[RunData], Value]) -> Column:
        return Column(name, tuple(of(run) or None for run in runs))

    def number(name: str, of: Callable[[RunData], float | None]) -> Column:
        return Column(name, tuple(map(of, runs)), _as_number, is_number=True)

    def if_several(each: Column) -> Column:
        return replace(each, is_shown=len({*each.values}) > 1)

    columns = [
        replace(column("run", lambda run: run.run_id), stays=True),
        if_several(column("cluster", lambda run: run.cluster)),
        if_several(column("task", lambda run: run.task)),
        *_keys(runs),
        *_metrics(runs),
        replace(column("end", _end), stays=True),
        replace(number("took", lambda run: run.seconds), text=_as_duration, stays=True),
        replace(if_several(column("code", _code(runs))), stays=True),
        number("GPU h", gpu_hours),
        number("step", lambda run: run.step),
        if_several(number("nodes", lambda run: len(run.plans[-1].nodes) if run.plans else None)),
        if_several(number("GPUs", lambda run: run.gpu_count or None)),
        replace(number("exit code", _exit_code), is_shown=False),
        replace(number("started", lambda run: run.launched_at), is_shown=False),
        replace(column("sweep", lambda run: run.sweep_id), is_shown=False),
    ]
    return [each for each in columns if any(value is not None for value in each.values)]


def _keys(runs: Sequence[RunData]) -> list[Column]:
    """Return a column for each key that differs; of other clusters, not what they are made of."""
    several = len({run.cluster for run in runs}) > 1
    return [
        Column(
            name=key.removeprefix(f"{ARGUMENTS}."),
            values=values,
            is_shown=not (several and key.startswith("cluster.")),
            key=key,
        )
        for key, values in differing_values(runs).items()
    ]


def _metrics(runs: Sequence[RunData]) -> list[Column]:
    """Return last and best of each metric, the loss first, each with its curve."""
    by_run = [{metric.name: metric for metric in run.metrics} for run in runs]
    names = sorted({name for metrics in by_run for name in metrics}, key=lambda n: (n != "loss", n))
    columns = []
    for name in names:
        found = [metrics.get(name) for metrics in by_run]
        last = tuple(_last(metric) for metric in found)
        is_loss = name == "loss"
        columns.append(
            Column(
                name=name,
                values=last,
                text=_as_number,
                sparks=tuple(map(_spark, found)) if is_loss else (),
                stays=is_loss,
                is_number=True,
            )
        )
        word = best_word(name)
        best = tuple(getattr(metric, word, None) for metric in found)
        if best != last:
            columns.append(Column(f"{word} {name}", best, _as_number, is_number=True))
    return columns


def _last(metric: Metric | None) -> float | None:
    if metric is None:
        return None
    return math.nan if metric.last is None else metric.last


def _spark(metric: Metric | None) -> str:
    """Return the curve of a metric over all attempts, in a few blocks."""
    series = metric.by_attempt.values() if metric else ()
    values = [v for each in series for v in each.values if v is not None and math.isfinite(v)]
    if len(values) < 2:  # noqa: PLR2004 (a curve)
        return ""
    least = min(values)
    step = (max(values) - least) / (len(SPARKS) - 1) or 1.0
    shown = min(SPARK_WIDTH, len(values))
    picked = [values[round(i * (len(values) - 1) / (shown - 1))] for i in range(shown)]
    return "".join(SPARKS[round((value - least) / step)] for value in picked)


def _code(runs: Sequence[RunData]) -> Callable[[RunData], str]:
    """Return what tells the code of runs apart: the commit, or else the whole of it."""
    commits = {run.plans[-1].commit if run.plans else "" for run in runs}
    if len(commits) < len(runs):
        return code_text
    return lambda run: code_text(run).partition(" ")[0]


def _end(run: RunData) -> str:
    if run.verdict is None:
        return ""
    code = run.verdict.exit_code
    return f"{run.verdict.state} ({code})" if code else run.verdict.state


def _exit_code(run: RunData) -> int | None:
    return run.verdict.exit_code if run.verdict else None


def _as_number(value: Value) -> str:
    number = float(value or 0)
    return "NaN" if math.isnan(number) else number_text(number)


def _as_duration(value: Value) -> str:
    return format_duration(float(value or 0))


def _short(text: str) -> str:
    return f"{text[: MAX_CELL - 1]}…" if len(text) > MAX_CELL else text


def sort_columns(columns: Sequence[Column], word: str) -> list[Column]:
    """Return the runs by a column, the least first, with "-" before it the most; unknown last.

    Raises:
        ConfigError: There is no such column.
    """
    name = word.removeprefix("-")
    chosen = next((each for each in columns if name in (each.name, each.key)), None)
    if chosen is None:
        legal = [each.name for each in columns]
        near = difflib.get_close_matches(name, legal, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?\n" if near else ""
        hint += f"there are {join_some([printable(each) for each in legal], 20)}"
        message = f"no run has {name!r}, or it is the same in all of them"
        raise ConfigError([Problem("--sort", message, hint)])
    places = {place: _rank(value) for place, value in enumerate(chosen.values)}
    known = [place for place, rank in places.items() if rank is not None]
    known.sort(key=lambda place: places[place] or (), reverse=word.startswith("-"))
    order = [*known, *(place for place, rank in places.items() if rank is None)]

    return [
        replace(
            each,
            values=tuple(each.values[place] for place in order),
            sparks=tuple(each.sparks[place] for place in order) if each.sparks else (),
        )
        for each in columns
    ]


def _rank(value: Value) -> tuple[bool, float, str] | None:
    """Return by what a value is sorted: numbers before texts; None for no value."""
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        return True, 0.0, str(value)
    return None if math.isnan(number) else (False, number, "")


def render_columns(columns: Sequence[Column], width: int) -> str:
    """Return a table with a line for each run; columns without room are named below it."""
    shown = [each for each in columns if each.is_shown]
    if _width(shown) > width:
        shown = [replace(each, sparks=()) for each in shown]
    kept = list(shown)
    for each in reversed(shown):
        if _width(kept) > width and not each.stays:
            kept.remove(each)
    left_out = [printable(each.name) for each in shown if each not in kept]
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for each in kept:
        is_right = each.is_number and not each.sparks
        header = _short(printable(each.name))
        table.add_column(header, justify="right" if is_right else "left", no_wrap=True)
    for row in zip(*(each.cells for each in kept), strict=True):
        table.add_row(*row)
    console = Console(width=max(width, _width(kept)), markup=False, highlight=False)
    with console.capture() as captured:
        console.print(table)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    hidden = sum(bool(each.key) and not each.is_shown for each in columns)
    if hidden:
        lines.append(f"{counted(hidden, 'key')} of different clusters differ: --csv has them")
    if left_out:
        told = f"left out, to fit: {join_some(left_out, 6)}; --csv has all"
        lines += wrap(told, width, hanging_margin="  ")
    return "\n".join(lines)


def _width(columns: Iterable[Column]) -> int:
    """Return how many columns of a terminal these take."""
    return sum(max(map(len, (each.name, *each.cells))) + GAP for each in columns) - GAP


def as_csv(columns: Sequence[Column]) -> str:
    """Return all columns as CSV, as RFC 4180 has it: a line for each run."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([printable(each.key or each.name) for each in columns])
    for row in zip(*(each.values for each in columns), strict=True):
        writer.writerow(["" if value is None else printable(str(value)) for value in row])
    return out.getvalue()


def as_data(columns: Sequence[Column]) -> list[dict[str, Value]]:
    """Return all columns as JSON data, an object for each run; NaN is a text."""
    rows = zip(*(each.values for each in columns), strict=True)
    names = [each.key or each.name for each in columns]
    return [{name: _plain(value) for name, value in zip(names, row, strict=True)} for row in rows]


def _plain(value: Value) -> Value:
    is_number = isinstance(value, float)
    return "NaN" if is_number and math.isnan(float(value or 0)) else value
