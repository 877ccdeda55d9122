"""What the checks found, as a table: equal findings of many nodes as one."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from runner.core.model.finding import Finding, Level
from runner.core.text import counted, printable
from runner.ui.console.colour import BOLD, DIM, GREEN, RED, YELLOW, LineStyler
from runner.ui.node_names import fold_names
from runner.ui.problems import group_problems, merge_group

LEVEL_COLOURS = {Level.ERROR: BOLD + b";" + RED, Level.WARNING: YELLOW, Level.OK: GREEN}
SEVERITY_ORDER = (Level.OK, Level.WARNING, Level.ERROR)
"""The worst at the end: that is what stands above the prompt."""

DEFAULT_WIDTH, MAX_NAMES_WIDTH, MIN_TEXT_WIDTH = 100, 20, 40
"""Of a table that goes into a pipe; of its nodes, at most; and of what is said in it, at least."""

COLUMN_GAP = 2
COMMAND_HINT = re.compile(r"((?:[^:/]+: )?)((?:sudo|ssh\S*|python|[~/]\S*[^\s:]) \S.*)")
"""A line of a hint that is a command, perhaps after a few words and a colon."""

QUOTE_PREFIX = "| "
"""Begins a line of a hint that a program on the host has written."""

FindingsByCheck = Mapping[str, Sequence[Finding]]


class Row(NamedTuple):
    """Findings of one check that are equal but for their nodes."""

    check: str
    level: Level
    nodes: tuple[str, ...]
    message: str
    hint: str

    def names(self, max_width: int) -> str:
        """Return the nodes in at most so many characters, if that can be: the bad ones count."""
        text = fold_names(self.nodes) or "all"
        fits = len(text) <= max_width or self.level is not Level.OK
        return text if fits else f"{len(self.nodes)} nodes"


def errors(by_check: FindingsByCheck) -> list[Finding]:
    """Return what a launch refuses for."""
    return [
        finding
        for findings in by_check.values()
        for finding in findings
        if finding.level is Level.ERROR
    ]


def warnings(by_check: FindingsByCheck) -> list[str]:
    """Return what may go wrong, a sentence each, equal ones of many nodes as one."""
    warning_rows = (row for row in _rows(by_check) if row.level is Level.WARNING)
    return [f"{fold_names(row.nodes) or 'all'}: {row.message}" for row in warning_rows]


def as_data(by_check: FindingsByCheck) -> list[dict[str, Any]]:
    """Return it as a program can read it: a row per finding."""
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


def detect_screen() -> tuple[int, bool]:
    """Return how wide the terminal is that is printed to, and whether it takes colours."""
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    width = os.get_terminal_size(sys.stdout.fileno()).columns if is_terminal else DEFAULT_WIDTH
    return width or DEFAULT_WIDTH, is_terminal


def render(
    by_check: FindingsByCheck,
    cluster: str,
    task: str,
    width: int = DEFAULT_WIDTH,
    *,
    colour: bool = False,
) -> str:
    """Return the table, what is fine first and the worst last, and the sum of it."""
    rows = _rows(by_check)
    table = _Table.for_rows(rows, width, colour=colour)
    good_lines = [line for row in rows if row.level is Level.OK for line in table.row_lines(row)]
    bad_lines = [line for row in rows if row.level is not Level.OK for line in table.row_lines(row)]
    separator = [""] if good_lines and bad_lines else []
    return "\n".join([*good_lines, *separator, *bad_lines, _summary_line(rows, cluster, task)])


def _rows(by_check: FindingsByCheck) -> list[Row]:
    """Return findings that are equal but for their nodes as one, the worst last."""
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
class _Table:
    """Where the columns of a table begin, and where its lines end."""

    level_column: int
    node_column: int
    text_column: int
    max_names_width: int
    width: int
    styler: LineStyler | None

    @classmethod
    def for_rows(cls, rows: Sequence[Row], width: int, *, colour: bool) -> _Table:
        """Return one for these rows; very long names of nodes do not make a column wider."""
        max_names_width = min(width // 5, MAX_NAMES_WIDTH)
        level_column = max((len(row.check) for row in rows), default=0) + COLUMN_GAP
        node_column = (
            level_column + max((len(row.level.value) for row in rows), default=0) + COLUMN_GAP
        )
        widest = max((len(row.names(max_names_width)) for row in rows), default=0)
        text_column = node_column + min(widest, max_names_width) + COLUMN_GAP
        return cls(
            level_column,
            node_column,
            text_column,
            max_names_width,
            width,
            LineStyler(()) if colour else None,
        )

    def row_lines(self, row: Row) -> Iterator[str]:
        """Yield the lines of a row; its hints begin further left, so that they fit."""
        level, nodes, margin = (
            row.level.value,
            row.names(self.max_names_width),
            " " * self.text_column,
        )
        padding = " " * (self.node_column - self.level_column - len(level))
        coloured_level = self._coloured(LEVEL_COLOURS[row.level], level)
        head = f"{row.check:{self.level_column}}{coloured_level}{padding}{nodes}"
        gap = self.text_column - self.node_column - len(nodes)
        first, *more = self._wrap(printable(row.message), self.text_column)
        yield f"{head}{' ' * gap}{first}" if gap >= COLUMN_GAP else f"{head}\n{margin}{first}"
        yield from (margin + line for line in more)
        for line in row.hint.splitlines():
            yield from (
                self._coloured(DIM, hint_line) for hint_line in self._hint_lines(printable(line))
            )

    def _hint_lines(self, line: str) -> Iterator[str]:
        margin = " " * self.node_column
        if line.startswith(QUOTE_PREFIX):
            quoted = line[len(QUOTE_PREFIX) :]
            yield from (
                margin + QUOTE_PREFIX + part for part in self._wrap(quoted, self.node_column + 2)
            )
            return
        one_line = f"{margin}→ {line}"
        command = COMMAND_HINT.fullmatch(line)
        if not command or len(one_line) <= self.width:
            first, *more = self._wrap(line, self.node_column + 2)
            yield f"{margin}→ {first}"
            yield from (f"{margin}  {part}" for part in more)
            return
        yield f"{margin}→ {command[1].strip() or 'type'}"
        yield f"    {command[2]}"

    def _wrap(self, text: str, start: int) -> list[str]:
        """Break at blanks only: what is broken elsewhere cannot be copied."""
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
        return f"{cluster}: all is well"
    consequence = f"a launch of {task} would {'refuse or hang' if counts[Level.ERROR] else 'go on'}"
    return f"{cluster}: {', '.join(parts)}; {consequence}"
