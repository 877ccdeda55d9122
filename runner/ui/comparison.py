"""Comparison of runs: a row for each, and their table."""

from __future__ import annotations

from collections.abc import Sequence

from runner.core.errors import ConfigError, Problem
from runner.core.history import ARGUMENTS, RunData, best_word, code_text, differing_values
from runner.core.wire.text import format_duration, join_some, printable
from runner.ui.layout import fitted, number_text

LOSS = "loss"
STAYING = ("run", LOSS, "end", "code")
"""Columns that no terminal is too narrow for."""

NOT_FINITE = "NaN"
MAX_CELL = 40  # characters

Value = str | float | int | None
Row = dict[str, Value]


def compare_runs(runs: Sequence[RunData]) -> list[Row]:
    """Return of each run what differs in its keys, and what came of it.

    All rows have the same names. What is not known is None. Runs of several clusters do not differ
    in the keys of these.
    """
    keys = differing_values(runs)
    if len({run.cluster for run in runs}) > 1:
        keys = {key: values for key, values in keys.items() if not key.startswith("cluster.")}
    names = {metric.name for run in runs for metric in run.metrics}
    rows = []
    for place, run in enumerate(runs):
        row: Row = dict.fromkeys(("run", "cluster", "task"))
        row.update({printable(key): values[place] for key, values in keys.items()})
        metrics = {metric.name: metric for metric in run.metrics}
        for name in sorted(names, key=lambda name: (name != LOSS, name)):
            metric = metrics.get(name)
            best = best_word(name)
            last = None
            if metric:
                last = NOT_FINITE if metric.last is None else metric.last
            row[printable(name)] = last
            row[f"{best}_{printable(name)}"] = getattr(metric, best, None)
        code = run.verdict.exit_code if run.verdict else 0
        row["run"] = run.run_id  # only now: a metric may have any name
        row["cluster"] = run.cluster or None
        row["task"] = run.task or None
        row["end"] = None
        if run.verdict:
            row["end"] = f"{run.verdict.state} ({code})" if code else run.verdict.state
        row["seconds"] = None if run.seconds is None else round(run.seconds, 3)
        row["code"] = code_text(run) or None
        texts = {name: printable(value) for name, value in row.items() if isinstance(value, str)}
        rows.append({**row, **texts})
    return rows


def sort_runs(runs: Sequence[RunData], word: str) -> list[RunData]:
    """Return the runs by a column, the least first, with "-" before it the most; unknown last.

    Raise ConfigError if there is no such column.
    """
    rows = compare_runs(runs)
    name = word.removeprefix("-")
    column = next((each for each in rows[0] if name in (each, _header(each))), None)
    if column is None:
        message = f"no run has {name!r}, or it is the same in all of them"
        hint = f"there are {join_some([*map(_header, rows[0])], 20)}"
        raise ConfigError([Problem("--sort", message, hint)])

    def rank(place: int) -> tuple[bool, float, str]:
        """Numbers come before texts."""
        value = rows[place][column]
        try:
            return False, float(value or 0), ""
        except ValueError:
            return True, 0.0, str(value)

    known = [place for place, row in enumerate(rows) if row[column] not in (None, NOT_FINITE)]
    order = sorted(known, key=rank, reverse=word.startswith("-"))
    return [runs[place] for place in (*order, *sorted({*range(len(runs))} - {*known}))]


def render_runs(runs: Sequence[RunData], width: int) -> str:
    """Return a table with a line for each run; columns without room are named below it.

    What is equal in all runs is left out, and the best values of a metric if they are its last.
    """
    rows = compare_runs(runs)
    columns: dict[str, list[str]] = {}
    before: list[Value] = []
    for name in rows[0]:
        values = [row[name] for row in rows]
        is_same = len({*values}) == 1 and (len(rows) > 1 or values == [None])
        is_last = name.startswith(("least_", "most_")) and values == before
        before = values
        if is_last or (is_same and name not in STAYING):
            continue
        texts = [_header(name), *(cell_text(name, value) for value in values)]
        columns[name] = [f"{text[:MAX_CELL]}…" if len(text) > MAX_CELL else text for text in texts]
        if any(isinstance(value, (int, float)) for value in values):
            size = max(map(len, columns[name]))
            columns[name] = [cell.rjust(size) for cell in columns[name]]
    commits = [code.partition(" ")[0] for code in columns["code"]]
    if len({*commits}) == len({*columns["code"]}):
        columns["code"] = commits
    found = ["cluster", "task", *map(printable, differing_values(runs))]
    keys = [key for key in found if key in columns]
    results = [name for name in columns if name not in ("seconds", *STAYING, *keys)]
    giving_way = [*results[::-1], "seconds", *keys[::-1]]
    return "\n".join(fitted(columns, giving_way, width, "--csv"))


def _header(name: str) -> str:
    return "took" if name == "seconds" else name.removeprefix(ARGUMENTS)


def cell_text(name: str, value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return format_duration(value) if name == "seconds" else number_text(value)
