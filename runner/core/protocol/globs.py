"""Globs: patterns of paths below a working folder, matched one path component at a time.

As in a shell, `*` and `?` match neither "/" nor a leading dot, and `**` is any number of folders.
A folder that matches stands for everything in it.
"""

from __future__ import annotations

import fnmatch
from typing import FrozenSet, Iterable, List, Set, Tuple

GlobParts = Tuple[str, ...]
"""The parts of a pattern that are left to match; () after a full match."""

GlobState = FrozenSet[GlobParts]

ANY_DEPTH = "**"


def glob_problem(pattern: str) -> str:
    """Return why a pattern is not legal, "" if it is."""
    if not pattern.strip():
        return "is empty"
    if pattern.startswith(("/", "~")):
        return "is absolute"
    if ".." in pattern.split("/"):
        return "leads out of the working folder"
    return ""


def compile_globs(patterns: Iterable[str]) -> GlobState:
    """Return the state that matches the patterns at the top of the working folder."""
    return frozenset(_parts(pattern) for pattern in patterns)


def step(state: GlobState, name: str) -> GlobState:
    """Return the state below `name`; if () is in it, `name` matches."""
    next_state: Set[GlobParts] = set()
    for parts in state:
        _match_part(parts, name, next_state)
    return frozenset(next_state)


def matches_below(state: GlobState) -> bool:
    """Return whether a pattern may match something further down."""
    return any(parts and parts[0] != ANY_DEPTH for parts in state)


def _parts(pattern: str) -> GlobParts:
    parts: List[str] = []
    for part in pattern.split("/"):
        if part not in ("", ".") and not (part == ANY_DEPTH and parts[-1:] == [ANY_DEPTH]):
            parts.append(part)
    return tuple(parts[:-1] if parts[-1:] == [ANY_DEPTH] else parts)


def _match_part(parts: GlobParts, name: str, next_state: Set[GlobParts]) -> None:
    if not parts:
        next_state.add(parts)
        return
    hidden = name.startswith(".")
    if parts[0] == ANY_DEPTH:
        _match_part(parts[1:], name, next_state)
        if not hidden:
            next_state.add(parts)
    elif name == parts[0] or (
        fnmatch.fnmatchcase(name, parts[0]) and (not hidden or parts[0].startswith("."))
    ):
        next_state.add(parts[1:])
