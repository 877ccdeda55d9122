"""Problems as text: the same one on many hosts is one problem."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from runner.core.errors import Problem
from runner.ui.names import fold_names


def render(problems: Iterable[Problem]) -> str:
    """Return one `error:` paragraph per problem."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault((problem.what, _without_example(problem.hint)), []).append(problem)
    return "\n".join(f"error: {_merged(group)}" for group in groups.values())


def _without_example(hint: str) -> str:
    """Return a hint but for the command to try by hand, which names one host."""
    return "\n".join(line for line in hint.split("\n") if not line.startswith("try by hand:"))


def _merged(group: list[Problem]) -> Problem:
    if len(group) == 1:
        return group[0]
    return replace(group[0], where=fold_names(problem.where for problem in group))
