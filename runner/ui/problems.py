"""Problems and findings as text, with equal ones of many hosts merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from runner.core.errors import Finding, Level, Problem, fold_names
from runner.core.wire.text import counted, printable, printable_lines
from runner.ui.layout import aligned, group_names, wrap, wrap_lines
from runner.ui.output import coloured

MAX_NAMES_WIDTH = 20  # of nodes that are fine; of more, their number is shown

FindingsByCheck = Mapping[str, Sequence[Finding]]


def render_problems(problems: Iterable[Problem]) -> str:
    """Return one `error:` paragraph per problem."""
    paragraphs = (f"error: {problem}" for problem, _ in _merged(problems))
    return printable_lines("\n".join(paragraphs))


def _merged(problems: Iterable[Problem]) -> Iterator[tuple[Problem, int]]:
    """Yield as one, with their number, the problems that differ only in their hosts."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        said = problem.shared or problem
        key = f".nodes.{problem.subject}."
        texts = [text.replace(key, ".nodes.NODE.") for text in (said.message, said.hint)]
        groups.setdefault((texts[0], texts[1]), []).append(problem)
    for (message, hint), group in groups.items():
        first = group[0]
        if len(group) == 1:
            yield first, 1
            continue
        lines = [hint]
        if first.shared:
            shared = [(each.subject, each.shared) for each in group if each.shared]
            details = group_names((name, each.detail) for name, each in shared if each.detail)
            lines = [f"{fold_names(names)}: {detail}" for detail, names in details.items()]
            lines += [hint, first.shared.example]
        where = fold_names(problem.subject for problem in group if problem.subject)
        text = "\n".join(filter(None, lines))
        yield replace(first, subject=where, message=message, hint=text), len(group)


def _rows(by_check: FindingsByCheck, level: Level) -> list[tuple[str, Problem, int]]:
    return [
        (check, *merged)
        for check, findings in by_check.items()
        for merged in _merged(each.as_problem for each in findings if each.level is level)
    ]


def find_errors(by_check: FindingsByCheck) -> list[Finding]:
    of_checks = by_check.values()
    return [each for findings in of_checks for each in findings if each.level is Level.ERROR]


def warning_lines(by_check: FindingsByCheck) -> list[str]:
    """Return a line per warning with its remedy, equal ones of many nodes merged."""
    rows = _rows(by_check, Level.WARNING)
    lines = []
    for _, problem, _ in rows:
        remedy, _, _ = problem.hint.partition("\n")
        line = "; ".join(filter(None, (problem.message, remedy)))
        lines.append(f"{problem.subject or 'all'}: {line}")
    return lines


def render_findings(
    by_check: FindingsByCheck, cluster: str, task: str, width: int, *, colour: bool = False
) -> str:
    """Return a table of what is fine, the rest as problems, the worst last, and a summary.

    The `task` is "" where only the cluster is judged.
    """
    fine = _rows(by_check, Level.OK)
    starts = []
    for check, problem, count in fine:
        names = problem.subject or "all"
        where = names if len(names) <= MAX_NAMES_WIDTH else f"{count} nodes"
        starts.append((check, Level.OK.value, where, "|"))
    lines = []
    for start, (_, problem, _) in zip(aligned(starts, indent=""), fine, strict=True):
        margin = " " * (len(start) - 1)
        lines += wrap(start[:-1] + printable(problem.message), width, hanging_margin=margin)
    counts: list[str] = []
    paragraphs: list[str] = []
    for level in (Level.WARNING, Level.ERROR):
        rows = _rows(by_check, level)
        for check, problem, _ in rows:
            place = f"{problem.subject}: " if problem.subject else ""
            text = printable(f"{level.value}: {check}: {place}{problem.message}")
            paragraphs += wrap(text, width, hanging_margin="  ")
            hint = "\n".join(f"    {line}" for line in printable_lines(problem.hint).splitlines())
            paragraphs += wrap_lines(hint, width).splitlines()
        counts = [counted(len(rows), level.value), *counts] if rows else counts
    if paragraphs:
        told = "\n".join(paragraphs)
        if lines:
            lines.append("")
        lines.append(coloured(told) if colour else told)
    summary = "no problems found"
    if counts:
        consequence = "refuse or hang" if find_errors(by_check) else "continue"
        subject = f"a launch of {task}" if task else f"a launch on {cluster}"
        summary = f"{', '.join(counts)}; {subject} would {consequence}"
    return "\n".join([*lines, *wrap(f"{cluster}: {summary}", width)])
