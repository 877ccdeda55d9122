"""The table of findings, with equal ones of many nodes merged."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from runner.core.model.finding import Finding, Level
from runner.core.text import counted, printable
from runner.ui.console.colour import BOLD, DIM, GREEN, RED, YELLOW, LineStyler
from runner.ui.node_names import fold_names
from runner.ui.problems import group_problems, merge_group
from runner.ui.reports.columns import COLUMN_GAP, PIPE_WIDTH

LEVEL_COLOURS = {Level.ERROR: BOLD + b";" + RED, Level.WARNING: YELLOW, Level.OK: GREEN}
SEVERITY_ORDER = (Level.OK, Level.WARNING, Level.ERROR)
"""The order of the rows: the worst last, just above the prompt."""

MAX_NAMES_WIDTH, MIN_TEXT_WIDTH = 20, 40
"""The column of nodes has this width at most, the text this one at least."""

COMMAND_HINT = re.compile(r"((?:[^:/]+: )?)((?:sudo|ssh\S*|python|[~/]\S*[^\s:]) \S.*)")
"""A line of a hint that is a command, perhaps after some words and a colon."""

QUOTE_PREFIX = "| "
"""The prefix of a hint's line that quotes a program on the host."""

FindingsByCheck = Mapping[str, Sequence[Finding]]


class Row(NamedTuple):
    """Findings of one check that differ only in their nodes."""

    check: str
    level: Level
    nodes: tuple[str, ...]
    message: str
    hint: str

    def names(self, max_width: int) -> str:
        """Return the nodes, as a number if they are fine and their names are too long."""
        text = fold_names(self.nodes) or "all"
        fits = len(text) <= max_width or self.level is not Level.OK
        return text if fits else f"{len(self.nodes)} nodes"


def errors(by_check: FindingsByCheck) -> list[Finding]:
    """Return the findings for which a launch refuses."""
    return [
        finding
        for findings in by_check.values()
        for finding in findings
        if finding.level is Level.ERROR
    ]


def warnings(by_check: FindingsByCheck) -> list[str]:
    """Return a sentence per warning, with equal ones of many nodes merged."""
    warning_rows = (row for row in _rows(by_check) if row.level is Level.WARNING)
    return [f"{fold_names(row.nodes) or 'all'}: {row.message}" for row in warning_rows]


def as_data(by_check: FindingsByCheck) -> list[dict[str, Any]]:
    """Return the findings as data for a program."""
    return [
        {
            "check": check,
            "level": finding.level.value,
            "node": finding.node,
            "message": finding.message,
            "hint": finding.hint,
        }
        for check, findings in by_check.items()
        for finding in findings
    ]


def render(
    by_check: FindingsByCheck,
    cluster: str,
    task: str,
    width: int = PIPE_WIDTH,
    *,
    colour: bool = False,
) -> str:
    """Return the table, with the worst findings last, and a summary."""
    rows = _rows(by_check)
    layout = _Layout.of_rows(rows, width, colour=colour)
    level_width = max((len(row.level.value) for row in rows), default=0)
    lines: dict[bool, list[str]] = {True: [], False: []}
    for row in rows:
        lines[row.level is Level.OK] += layout.row_lines(row, level_width)
    separator = [""] if all(lines.values()) else []
    return "\n".join([*lines[True], *separator, *lines[False], _summary_line(rows, cluster, task)])


def _rows(by_check: FindingsByCheck) -> list[Row]:
    """Merge findings that differ only in their nodes, the worst last."""
    rows: list[Row] = []
    for check, findings in by_check.items():
        for level in SEVERITY_ORDER:
            for group in group_problems(
                problem.as_problem for problem in findings if problem.level is level
            ):
                problem = merge_group(group)
                nodes = tuple(member.subject for member in group if member.subject)
                rows.append(Row(check, level, nodes, problem.message, problem.hint))
    return sorted(rows, key=lambda row: SEVERITY_ORDER.index(row.level))


@dataclass(frozen=True)
class _Layout:
    """The columns of the table: check, level, nodes and text.

    Not a table of Rich's: hints stand between the rows and further left, so that they fit, and no
    command in them is ever broken.
    """

    check_width: int
    names_width: int
    max_names_width: int
    width: int
    styler: LineStyler | None

    @classmethod
    def of_rows(cls, rows: Sequence[Row], width: int, *, colour: bool) -> _Layout:
        """Return the layout for these rows; very long names do not make their column wider."""
        max_names_width = min(width // 5, MAX_NAMES_WIDTH)
        widest = max((len(row.names(max_names_width)) for row in rows), default=0)
        return cls(
            check_width=max((len(row.check) for row in rows), default=0),
            names_width=min(widest, max_names_width),
            max_names_width=max_names_width,
            width=width,
            styler=LineStyler(()) if colour else None,
        )

    def row_lines(self, row: Row, level_width: int) -> Iterator[str]:
        """Yield the lines of a row and of its hints."""
        hint_column = self.check_width + level_width + 2 * COLUMN_GAP
        text_column = hint_column + self.names_width + COLUMN_GAP
        names = row.names(self.max_names_width)
        level = self._coloured(LEVEL_COLOURS[row.level], row.level.value)
        padding = " " * (level_width - len(row.level.value))
        head = f"{row.check:{self.check_width}}  {level}{padding}  {names:{self.names_width}}"
        first, *more = self._wrap(printable(row.message), text_column)
        if len(names) > self.names_width:
            yield head
            yield " " * text_column + first
        else:
            yield f"{head}  {first}"
        yield from (" " * text_column + line for line in more)
        for hint in row.hint.splitlines():
            for line in self._hint_lines(printable(hint), hint_column):
                yield self._coloured(DIM, line)

    def _hint_lines(self, line: str, column: int) -> Iterator[str]:
        margin = " " * column
        if line.startswith(QUOTE_PREFIX):
            parts = self._wrap(line[len(QUOTE_PREFIX) :], column + 2)
            yield from (margin + QUOTE_PREFIX + part for part in parts)
            return
        command = COMMAND_HINT.fullmatch(line)
        if command and len(f"{margin}→ {line}") > self.width:
            yield f"{margin}→ {command[1].strip() or 'type'}"
            yield f"    {command[2]}"
            return
        first, *more = self._wrap(line, column + 2)
        yield f"{margin}→ {first}"
        yield from (f"{margin}  {part}" for part in more)

    def _wrap(self, text: str, start: int) -> list[str]:
        """Break at blanks only, so that words can be copied."""
        room = max(self.width - start, MIN_TEXT_WIDTH)
        return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]

    def _coloured(self, code: bytes, text: str) -> str:
        return self.styler.sgr(code, text.encode()).decode() if self.styler else text


def _summary_line(rows: Sequence[Row], cluster: str, task: str) -> str:
    counts = {level: sum(row.level is level for row in rows) for level in Level}
    parts = [
        counted(counts[level], level.value)
        for level in (Level.ERROR, Level.WARNING)
        if counts[level]
    ]
    if not parts:
        return f"{cluster}: no problems found"
    consequence = (
        f"a launch of {task} would {'refuse or hang' if counts[Level.ERROR] else 'continue'}"
    )
    return f"{cluster}: {', '.join(parts)}; {consequence}"
