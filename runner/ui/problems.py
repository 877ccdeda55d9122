"""Problems and findings as text, with equal ones of many hosts merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.core.errors import Problem
from runner.core.model.results import Finding, Level
from runner.core.text import counted, printable, printable_lines
from runner.ui.layout import (
    PIPE_WIDTH,
    fold_names,
    group_names,
    new_table,
    table_lines,
    wrap,
    wrap_lines,
)

COLOURS = {Level.WARNING: "33", Level.ERROR: "1;31"}
DIM = "2"
MAX_NAMES_WIDTH = 20  # of nodes that are fine; of more, their number is shown

FindingsByCheck = Mapping[str, Sequence[Finding]]


def render_problems(problems: Iterable[Problem]) -> str:
    """Return one `error:` paragraph per problem."""
    merged = map(_merge, _group_problems(problems))
    return printable_lines("\n".join(f"error: {problem}" for problem in merged))


def _group_problems(problems: Iterable[Problem]) -> list[list[Problem]]:
    """Group problems that differ only in their hosts, in the order of their first."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault(_common_text(problem), []).append(problem)
    return list(groups.values())


def _common_text(problem: Problem) -> tuple[str, str]:
    """Return message and hint without what is of one host only."""
    said = problem.shared or problem
    key = f".nodes.{problem.subject}."
    return said.message.replace(key, ".nodes.NODE."), said.hint.replace(key, ".nodes.NODE.")


def _merge(group: Sequence[Problem]) -> Problem:
    """Return a group as one problem of all its hosts."""
    first = group[0]
    if len(group) == 1:
        return first
    message, hint = _common_text(first)
    lines = [hint]
    if first.shared:
        shared = [(each.subject, each.shared) for each in group if each.shared]
        details = group_names((name, each.detail) for name, each in shared if each.detail)
        hosts = dict.fromkeys(each.host for _, each in shared)
        lines = [f"{fold_names(names)}: {detail}" for detail, names in details.items()]
        lines.append(hint.replace("{}", " ".join(hosts)) if first.shared.host else hint)
        lines.append(first.shared.example)
    where = fold_names(problem.subject for problem in group if problem.subject)
    return replace(first, subject=where, message=message, hint="\n".join(filter(None, lines)))


def _rows(by_check: FindingsByCheck, level: Level) -> Iterator[tuple[str, list[Problem]]]:
    """Yield each check with findings of a level that differ only in their nodes."""
    for check, findings in by_check.items():
        of_level = (finding.as_problem for finding in findings if finding.level is level)
        for group in _group_problems(of_level):
            yield check, group


def find_errors(by_check: FindingsByCheck) -> list[Finding]:
    """Return the findings for which a launch refuses."""
    of_checks = by_check.values()
    return [each for findings in of_checks for each in findings if each.level is Level.ERROR]


def warning_lines(by_check: FindingsByCheck) -> list[str]:
    """Return a sentence per warning, with equal ones of many nodes merged."""
    merged = (_merge(group) for _, group in _rows(by_check, Level.WARNING))
    return [f"{problem.subject or 'all'}: {problem.message}" for problem in merged]


def findings_as_data(by_check: FindingsByCheck) -> list[dict[str, Any]]:
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


def render_findings(
    by_check: FindingsByCheck,
    cluster: str,
    task: str,
    width: int = PIPE_WIDTH,
    *,
    colour: bool = False,
) -> str:
    """Return a table of what is fine, the rest as problems, the worst last, and a summary.

    The `task` is "" where only the cluster is judged.
    """
    from rich.text import Text

    table = new_table(show_header=False)
    for check, group in _rows(by_check, Level.OK):
        names = fold_names(problem.subject for problem in group if problem.subject) or "all"
        if len(names) > MAX_NAMES_WIDTH:
            names = f"{len(group)} nodes"
        message = Text(printable(_merge(group).message), overflow="fold")
        fine = Text(Level.OK.value, "green")
        table.add_row(Text(check), fine, Text(names), message)
    lines = table_lines(table, width, colour=colour) if table.rows else []

    def coloured(text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if colour and text else text

    by_level = {level: list(_rows(by_check, level)) for level in COLOURS}
    if lines and any(by_level.values()):
        lines.append("")
    for level, rows in by_level.items():
        word = coloured(level.value, COLOURS[level])
        for check, group in rows:
            problem = _merge(group)
            place = f"{problem.subject}: " if problem.subject else ""
            text = printable(f"{level.value}: {check}: {place}{problem.message}")
            first, *more = wrap(text, width, hanging_margin="  ")
            lines += [word + first.removeprefix(level.value), *more]
            hint = "\n".join(f"    {line}" for line in printable_lines(problem.hint).splitlines())
            lines += [coloured(line, DIM) for line in wrap_lines(hint, width).splitlines()]
    worst_first = [each for each in reversed(by_level.items()) if each[1]]
    summary = ", ".join(counted(len(rows), level.value) for level, rows in worst_first)
    if summary:
        consequence = "refuse or hang" if by_level[Level.ERROR] else "continue"
        subject = f"a launch of {task}" if task else f"a launch on {cluster}"
        summary += f"; {subject} would {consequence}"
    return "\n".join([*lines, *wrap(f"{cluster}: {summary or 'no problems found'}", width)])
