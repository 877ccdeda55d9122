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
from runner.core.text import readable
from runner.ui.console.colour import BOLD, DIM, GREEN, RED, YELLOW, Paint
from runner.ui.node_names import fold_names
from runner.ui.problems import grouped, merged

COLOURS = {Level.ERROR: BOLD + b";" + RED, Level.WARNING: YELLOW, Level.FINE: GREEN}
SEVERITY = (Level.FINE, Level.WARNING, Level.ERROR)
"""The worst at the end: that is what stands above the prompt."""

WIDTH, WIDE, NARROW = 100, 20, 40
"""Of a table that goes into a pipe; of its nodes, at most; and of what is said in it, at least."""

GAP = 2
TO_COPY = re.compile(r"((?:[^:/]+: )?)((?:sudo|ssh\S*|python|[~/]\S*[^\s:]) \S.*)")
"""A line of a hint that is a command, perhaps after a few words and a colon."""

QUOTED = "| "
"""Begins a line of a hint that a program on the host has written."""

Found = Mapping[str, Sequence[Finding]]


class Row(NamedTuple):
    """Findings of one check that are equal but for their nodes."""

    check: str
    level: Level
    nodes: tuple[str, ...]
    what: str
    hint: str

    def names(self, most: int) -> str:
        """Return the nodes in at most so many characters, if that can be: the bad ones count."""
        text = fold_names(self.nodes) or "all"
        fits = len(text) <= most or self.level is not Level.FINE
        return text if fits else f"{len(self.nodes)} nodes"


def errors(found: Found) -> list[Finding]:
    """Return what a launch refuses for."""
    return [one for those in found.values() for one in those if one.level is Level.ERROR]


def warnings(found: Found) -> list[str]:
    """Return what may go wrong, a sentence each, equal ones of many nodes as one."""
    bad = (row for row in _rows(found) if row.level is Level.WARNING)
    return [f"{fold_names(row.nodes) or 'all'}: {row.what}" for row in bad]


def as_data(found: Found) -> list[dict[str, Any]]:
    """Return it as a program can read it: a row per finding."""
    return [
        {
            "check": check,
            "level": one.level.value,
            "node": one.node,
            "what": one.what,
            "hint": one.hint,
        }
        for check, those in found.items()
        for one in those
    ]


def screen() -> tuple[int, bool]:
    """Return how wide the terminal is that is printed to, and whether it takes colours."""
    lively = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    width = os.get_terminal_size(sys.stdout.fileno()).columns if lively else WIDTH
    return width or WIDTH, lively


def render(
    found: Found, cluster: str, task: str, width: int = WIDTH, *, colour: bool = False
) -> str:
    """Return the table, what is fine first and the worst last, and the sum of it."""
    rows = _rows(found)
    table = _Table.of(rows, width, colour=colour)
    fine = [line for row in rows if row.level is Level.FINE for line in table.shown(row)]
    bad = [line for row in rows if row.level is not Level.FINE for line in table.shown(row)]
    apart = [""] if fine and bad else []
    return "\n".join([*fine, *apart, *bad, _sum(rows, cluster, task)])


def _rows(found: Found) -> list[Row]:
    """Return findings that are equal but for their nodes as one, the worst last."""
    rows: list[Row] = []
    for check, those in found.items():
        for level in SEVERITY:
            for group in grouped(one.problem for one in those if one.level is level):
                one = merged(group)
                nodes = tuple(each.where for each in group if each.where)
                rows.append(Row(check, level, nodes, one.what, one.hint))
    return sorted(rows, key=lambda row: SEVERITY.index(row.level))


@dataclass(frozen=True)
class _Table:
    """Where the columns of a table begin, and where its lines end."""

    levels_at: int
    nodes_at: int
    said_at: int
    most: int
    width: int
    paint: Paint | None

    @classmethod
    def of(cls, rows: Sequence[Row], width: int, *, colour: bool) -> _Table:
        """Return one for these rows; very long names of nodes do not make a column wider."""
        most = min(width // 5, WIDE)
        levels_at = max((len(row.check) for row in rows), default=0) + GAP
        nodes_at = levels_at + max((len(row.level.value) for row in rows), default=0) + GAP
        widest = max((len(row.names(most)) for row in rows), default=0)
        said_at = nodes_at + min(widest, most) + GAP
        return cls(levels_at, nodes_at, said_at, most, width, Paint(()) if colour else None)

    def shown(self, row: Row) -> Iterator[str]:
        """Yield the lines of a row; its hints begin further left, so that they fit."""
        level, nodes, margin = row.level.value, row.names(self.most), " " * self.said_at
        after = " " * (self.nodes_at - self.levels_at - len(level))
        shade = self._in(COLOURS[row.level], level)
        head = f"{row.check:{self.levels_at}}{shade}{after}{nodes}"
        gap = self.said_at - self.nodes_at - len(nodes)
        first, *more = self._wrapped(readable(row.what), self.said_at)
        yield f"{head}{' ' * gap}{first}" if gap >= GAP else f"{head}\n{margin}{first}"
        yield from (margin + line for line in more)
        for line in row.hint.splitlines():
            yield from (self._in(DIM, each) for each in self._hinted(readable(line)))

    def _hinted(self, line: str) -> Iterator[str]:
        margin = " " * self.nodes_at
        if line.startswith(QUOTED):
            quoted = line[len(QUOTED) :]
            yield from (margin + QUOTED + each for each in self._wrapped(quoted, self.nodes_at + 2))
            return
        whole = f"{margin}→ {line}"
        command = TO_COPY.fullmatch(line)
        if not command or len(whole) <= self.width:
            first, *more = self._wrapped(line, self.nodes_at + 2)
            yield f"{margin}→ {first}"
            yield from (f"{margin}  {each}" for each in more)
            return
        yield f"{margin}→ {command[1].strip() or 'type'}"
        yield f"    {command[2]}"

    def _wrapped(self, text: str, start: int) -> list[str]:
        """Break at blanks only: what is broken elsewhere cannot be copied."""
        room = max(self.width - start, NARROW)
        return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]

    def _in(self, code: bytes, text: str) -> str:
        return self.paint.sgr(code, text.encode()).decode() if self.paint else text


def _sum(rows: Sequence[Row], cluster: str, task: str) -> str:
    counts = {level: sum(row.level is level for row in rows) for level in Level}
    bad = [
        f"{counts[level]} {level.value}{'' if counts[level] == 1 else 's'}"
        for level in (Level.ERROR, Level.WARNING)
        if counts[level]
    ]
    if not bad:
        return f"{cluster}: all is well"
    then = f"a launch of {task} would {'refuse or hang' if counts[Level.ERROR] else 'go on'}"
    return f"{cluster}: {', '.join(bad)}; {then}"
