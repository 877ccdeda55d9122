"""What a task leaves to be fetched: paths, or patterns of them, below its working folder.

As in a shell, `*` and `?` match no "/" and no dot in front, and `**` is any number of folders.
A folder that matches stands for all that is in it.
"""

from __future__ import annotations

import fnmatch
from typing import FrozenSet, Iterable, List, Set, Tuple

Parts = Tuple[str, ...]
"""What is left to match of a pattern; () when all of it did."""

Matching = FrozenSet[Parts]

ANY = "**"


def problem_of(pattern: str) -> str:
    """Return what is wrong with a pattern, "" for nothing."""
    if not pattern.strip():
        return "is empty"
    if pattern.startswith(("/", "~")):
        return "is absolute"
    if ".." in pattern.split("/"):
        return "leads out of the working folder"
    return ""


def begin(patterns: Iterable[str]) -> Matching:
    """Return the patterns as they are to be matched at the top of the working folder."""
    return frozenset(_parts(pattern) for pattern in patterns)


def descend(matching: Matching, name: str) -> Matching:
    """Return what the patterns still ask for below `name`; with () in it, `name` matches."""
    after: Set[Parts] = set()
    for parts in matching:
        _step(parts, name, after)
    return frozenset(after)


def named_below(matching: Matching) -> bool:
    """Whether a pattern that matched so far names something further down."""
    return any(parts and parts[0] != ANY for parts in matching)


def _parts(pattern: str) -> Parts:
    parts: List[str] = []
    for part in pattern.split("/"):
        if part not in ("", ".") and not (part == ANY and parts[-1:] == [ANY]):
            parts.append(part)
    return tuple(parts[:-1] if parts[-1:] == [ANY] else parts)


def _step(parts: Parts, name: str, after: Set[Parts]) -> None:
    if not parts:
        after.add(parts)
        return
    hidden = name.startswith(".")
    if parts[0] == ANY:
        _step(parts[1:], name, after)
        if not hidden:
            after.add(parts)
    elif name == parts[0] or (
        fnmatch.fnmatchcase(name, parts[0]) and (not hidden or parts[0].startswith("."))
    ):
        after.add(parts[1:])
