"""Problems as text, with equal ones of many hosts merged."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from runner.core.errors import Problem
from runner.ui.node_names import fold_names

BY_HAND_PREFIX = "try by hand: "
"""The prefix of a hint's line that holds an example for one host."""

_UNKNOWN_KEY = re.compile(r"the host key of (?P<place>.+) is not known: (?P<key>.+)")
_SCAN_HINT = re.compile(
    r"^if they are equal: ssh-keyscan (?P<how>.* )(?P<host>\S+) >> (?P<file>.+)\n?", re.MULTILINE
)
"""Texts of `transport.ssh.errors`."""


def render(problems: Iterable[Problem]) -> str:
    """Return one `error:` paragraph per problem."""
    return "\n".join(f"error: {merge_group(group)}" for group in group_problems(problems))


def group_problems(problems: Iterable[Problem]) -> list[list[Problem]]:
    """Group problems that differ only in their hosts, in the order of their first."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault(_without_place(problem), []).append(problem)
    return list(groups.values())


def merge_group(group: list[Problem]) -> Problem:
    """Return a group as one problem of all its hosts, with one of the examples."""
    if len(group) == 1:
        return group[0]
    message, hint = _without_place(group[0])
    where = fold_names(problem.subject for problem in group if problem.subject)
    lines = [
        *_unknown_keys(group),
        *hint.splitlines()[:1],
        *_scan_commands(group),
        *hint.splitlines()[1:],
    ]
    lines += [line for line in group[0].hint.splitlines() if line.startswith(BY_HAND_PREFIX)]
    return replace(group[0], subject=where, message=message, hint="\n".join(lines))


def _without_place(problem: Problem) -> tuple[str, str]:
    """Return message and hint without the parts specific to one host."""
    key = f".nodes.{problem.subject}."
    message, hint = (text.replace(key, ".nodes.NODE.") for text in (problem.message, problem.hint))
    if _UNKNOWN_KEY.match(message) and _SCAN_HINT.search(hint):
        return "the host keys are not known", _SCAN_HINT.sub("", hint)
    if BY_HAND_PREFIX in hint:  # a failed login names its host
        message = re.sub(r"\S+(?: \(\S+\))? (?=port \d)", "its ", message)
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
