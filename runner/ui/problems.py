"""Problems as text: the same one on many hosts is one problem."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from runner.core.errors import Problem
from runner.ui.names import fold_names

BY_HAND = "try by hand: "
"""Begins the line of a hint with an example that is of one host."""


def render(problems: Iterable[Problem]) -> str:
    """Return one `error:` paragraph per problem."""
    return "\n".join(f"error: {merged(group)}" for group in grouped(problems))


def grouped(problems: Iterable[Problem]) -> list[list[Problem]]:
    """Return problems that differ by nothing but their places together, in their order."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault(_anywhere(problem), []).append(problem)
    return list(groups.values())


def merged(group: list[Problem]) -> Problem:
    """Return a group as one problem of all its places, with one of the examples."""
    if len(group) == 1:
        return group[0]
    what, hint = _anywhere(group[0])
    example = [line for line in group[0].hint.splitlines() if line.startswith(BY_HAND)]
    where = fold_names(problem.where for problem in group if problem.where)
    return replace(group[0], where=where, what=what, hint="\n".join([hint] * bool(hint) + example))


def _anywhere(problem: Problem) -> tuple[str, str]:
    """Return what is wrong and the hint, without what is so of one host only."""
    key = f".nodes.{problem.where}."
    what, hint = (text.replace(key, ".nodes.NODE.") for text in (problem.what, problem.hint))
    if BY_HAND in hint:  # a log-in failed, and says where
        what = re.sub(r"\S+(?: \(\S+\))? (?=port \d)", "its ", what)
        hint = "\n".join(line for line in hint.splitlines() if not line.startswith(BY_HAND))
    return what, hint
