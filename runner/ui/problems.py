"""Problems and findings as text, with equal ones of many hosts merged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from runner.core.errors import Problem
from runner.core.model.results import Finding, Level
from runner.core.text import counted, printable, printable_lines
from runner.ui.console.lines import BOLD, DIM, GREEN, RED, YELLOW, LineStyler
from runner.ui.layout import COLUMN_GAP, PIPE_WIDTH, fold_names, wrap

BY_HAND_PREFIX = "try by hand: "  # the prefix of a hint's line that holds an example for one host
_UNKNOWN_KEY = re.compile(r"the host key of (?P<place>.+) is not known: (?P<key>.+)")
_SCAN_HINT = re.compile(
    r"^if they are equal: ssh-keyscan (?P<how>.* )(?P<host>\S+) >> (?P<file>.+)\n?", re.MULTILINE
)
"""Texts of `transport.ssh.errors`."""

LEVEL_COLOURS = {Level.OK: GREEN, Level.WARNING: YELLOW, Level.ERROR: BOLD + b";" + RED}
"""In the order of the rows: the worst last, just above the prompt."""

MAX_NAMES_WIDTH, MIN_TEXT_WIDTH = 20, 24  # of the columns of nodes and of text
COMMAND_HINT = re.compile(
    r"((?:[^:/]+: )?)((?:sudo|ssh\S*|python|runner|\S+ -m runner|[~/]\S*[^\s:]) \S.*)"
)
"""A line of a hint that is a command, perhaps after some words and a colon."""

QUOTE_PREFIX = "| "  # the prefix of a hint's line that quotes a program on the host

FindingsByCheck = Mapping[str, Sequence[Finding]]


def render_problems(problems: Iterable[Problem]) -> str:
    """Return one `error:` paragraph per problem."""
    lines = (f"error: {_merge_group(group)}" for group in _group_problems(problems))
    return printable_lines("\n".join(lines))


def _group_problems(problems: Iterable[Problem]) -> list[list[Problem]]:
    """Group problems that differ only in their hosts, in the order of their first."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault(_without_place(problem), []).append(problem)
    return list(groups.values())


def _merge_group(group: list[Problem]) -> Problem:
    """Return a group as one problem of all its hosts, with one of the examples."""
    if len(group) == 1:
        return group[0]
    message, hint = _without_place(group[0])
    where = fold_names(problem.subject for problem in group if problem.subject)
    first, rest = hint.splitlines()[:1], hint.splitlines()[1:]
    by_hand = [line for line in group[0].hint.splitlines() if line.startswith(BY_HAND_PREFIX)]
    lines = [*_unknown_keys(group), *first, *_scan_commands(group), *rest, *by_hand]
    return replace(group[0], subject=where, message=message, hint="\n".join(lines))


def _without_place(problem: Problem) -> tuple[str, str]:
    """Return message and hint without the parts specific to one host."""
    key = f".nodes.{problem.subject}."
    message, hint = (text.replace(key, ".nodes.NODE.") for text in (problem.message, problem.hint))
    if _UNKNOWN_KEY.match(message) and _SCAN_HINT.search(hint):
        return "the host keys are not known", _SCAN_HINT.sub("", hint)
    if BY_HAND_PREFIX in hint:  # a failed login names its host, or the jump host of many
        place = r"(jump host )?(?<!\S)\S+(?: \(\S+\))? (?=port \d)"
        message = re.sub(place, lambda found: found[0] if found[1] else "its ", message)
        message = re.sub(r"(?<=the )name '[^']*'", "name of its host", message)
        hint = "\n".join(line for line in hint.splitlines() if not line.startswith(BY_HAND_PREFIX))
    return message, hint


def _unknown_keys(group: list[Problem]) -> list[str]:
    """Return the unknown host keys one by one: each has to be compared."""
    nodes: dict[tuple[str, str], list[str]] = {}  # many nodes may be behind one jump host
    for problem in group:
        if match := _UNKNOWN_KEY.match(problem.message):
            nodes.setdefault((match["place"], match["key"]), []).append(problem.subject)
    return [f"{fold_names(names)}: {place}: {key}" for (place, key), names in nodes.items()]


def _scan_commands(group: list[Problem]) -> list[str]:
    """Return the commands that add all keys, as few as their ports allow."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for scan in filter(None, (_SCAN_HINT.search(problem.hint) for problem in group)):
        hosts.setdefault((scan["how"], scan["file"]), []).append(scan["host"])
    return [
        f"if they are equal: ssh-keyscan {how}{' '.join(dict.fromkeys(names))} >> {file}"
        for (how, file), names in hosts.items()
    ]


class _Row(NamedTuple):
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


def _rows(by_check: FindingsByCheck) -> list[_Row]:
    """Merge findings that differ only in their nodes, the worst last."""
    rows: list[_Row] = []
    for level in LEVEL_COLOURS:
        for check, findings in by_check.items():
            of_level = (finding.as_problem for finding in findings if finding.level is level)
            for group in _group_problems(of_level):
                problem = _merge_group(group)
                nodes = tuple(member.subject for member in group if member.subject)
                rows.append(_Row(check, level, nodes, problem.message, problem.hint))
    return rows


def find_errors(by_check: FindingsByCheck) -> list[Finding]:
    """Return the findings for which a launch refuses."""
    of_checks = by_check.values()
    return [each for findings in of_checks for each in findings if each.level is Level.ERROR]


def warning_lines(by_check: FindingsByCheck) -> list[str]:
    """Return a sentence per warning, with equal ones of many nodes merged."""
    rows = (row for row in _rows(by_check) if row.level is Level.WARNING)
    return [f"{fold_names(row.nodes) or 'all'}: {row.message}" for row in rows]


def findings_as_data(by_check: FindingsByCheck) -> list[dict[str, Any]]:
    """Return the findings as data for a program."""
    return [
        {"check": check, **vars(finding), "level": finding.level.value}
        for check, findings in by_check.items()
        for finding in findings
    ]


def render_findings(
    by_check: FindingsByCheck,
    cluster: str,
    task: str,
    width: int = PIPE_WIDTH,
    *,
    colour: bool = False,
) -> str:
    """Return the table, with the worst findings last, and a summary.

    The `task` is "" where only the cluster is judged.
    """
    rows = _rows(by_check)
    layout = _Layout(rows, width, LineStyler(()) if colour else None)
    fine = [line for row in rows if row.level is Level.OK for line in layout.row_lines(row)]
    bad = [line for row in rows if row.level is not Level.OK for line in layout.row_lines(row)]
    separator = [""] if fine and bad else []
    counts = {level: sum(row.level is level for row in rows) for level in Level}
    summary = ", ".join(
        counted(counts[level], level.value)
        for level in (Level.ERROR, Level.WARNING)
        if counts[level]
    )
    if summary:
        consequence = "refuse or hang" if counts[Level.ERROR] else "continue"
        subject = f"a launch of {task}" if task else f"a launch on {cluster}"
        summary += f"; {subject} would {consequence}"
    verdict = wrap(f"{cluster}: {summary or 'no problems found'}", width)
    return "\n".join([*fine, *separator, *bad, *verdict])


class _Layout:
    """The columns of the table: check, level, nodes and text.

    Not a table of Rich's: hints stand between the rows and further left, so that they fit, and no
    command in them is ever broken.
    """

    def __init__(self, rows: Sequence[_Row], width: int, styler: LineStyler | None) -> None:
        self._width, self._styler = width, styler
        self._max_names_width = min(width // 5, MAX_NAMES_WIDTH)  # longer ones widen no column
        names = (len(row.names(self._max_names_width)) for row in rows)
        self._names_width = min(max(names, default=0), self._max_names_width)
        self._check_width = max((len(row.check) for row in rows), default=0)
        self._level_width = max((len(row.level.value) for row in rows), default=0)

    def row_lines(self, row: _Row) -> Iterator[str]:
        """Yield the lines of a row and of its hints."""
        hint_column = self._check_width + self._level_width + 2 * COLUMN_GAP
        text_column = hint_column + self._names_width + COLUMN_GAP
        names = row.names(self._max_names_width)
        level = self._coloured(LEVEL_COLOURS[row.level], row.level.value)
        padding = " " * (self._level_width - len(row.level.value))
        head = f"{row.check:{self._check_width}}  {level}{padding}  {names:{self._names_width}}"
        first, *more = self._wrap(printable(row.message), text_column)
        if len(names) > self._names_width:
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
        if command and len(f"{margin}→ {line}") > self._width:
            yield f"{margin}→ {command[1].strip() or 'type'}"
            yield f"    {command[2]}"
            return
        first, *more = self._wrap(line, column + 2)
        yield f"{margin}→ {first}"
        yield from (f"{margin}  {part}" for part in more)

    def _wrap(self, text: str, start: int) -> list[str]:
        return wrap(text, max(self._width - start, MIN_TEXT_WIDTH))

    def _coloured(self, code: bytes, text: str) -> str:
        return self._styler.sgr(code, text.encode()).decode() if self._styler else text
