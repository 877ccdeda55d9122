"""Markdown of the checks: a line about the machine, a row per check, the ends of what failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_DETAIL_LINES = 25
MAX_FIGURE_CHARS = 120


@dataclass(frozen=True)
class Row:
    """One check.

    Attributes:
        check: Its name.
        result: "ok", "skipped" or "failed".
        figure: What was measured, why it was skipped, or the first line of `details`.
        seconds: How long it took.
        details: Of a failed one, the message or the traceback.
    """

    check: str
    result: str
    figure: str
    seconds: float
    details: str = ""


def render(machine: str, rows: Sequence[Row]) -> str:
    """Return what is pasted into an issue."""
    counts = [
        f"{len(found)} {name}"
        for name in ("ok", "skipped", "failed")
        if (found := [row for row in rows if row.result == name])
    ]
    total = sum(row.seconds for row in rows)
    lines = [f"`make gpu`: {', '.join(counts)} in {total:.0f} s", "", machine, ""]
    lines += ["| check | result | figure | seconds |", "|---|---|---|--:|"]
    for row in rows:
        seconds = "" if row.result == "skipped" else f"{row.seconds:.1f}"
        cells = (cell(row.check), row.result, cell(row.figure), seconds)
        lines.append(" ".join(("|", *(f"{text} |".lstrip() for text in cells))))
    for row in rows:
        if row.details:
            lines += ["", f"{row.check}:", "", "~~~text"]
            lines += [*row.details.rstrip().splitlines()[-MAX_DETAIL_LINES:], "~~~"]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Return a text as one cell: on one line, cut, without the sign that ends a cell."""
    line = " ".join(text.split())
    if len(line) > MAX_FIGURE_CHARS:
        line = line[: MAX_FIGURE_CHARS - 1] + "…"
    return line.replace("|", "\\|")
