"""What a program said last: the traceback in a log, and the exception that ended it."""

from __future__ import annotations

import re
from typing import List, Sequence, Tuple

TRACEBACK = "Traceback (most recent call last):"

SHOWN = 10
"""Lines that stand for a log without a traceback."""

LATER = 10
"""Lines that may follow the traceback of an exception that ended a program: what libraries say as
they are torn down."""

LONGEST = 2000
"""Characters of an exception that are kept."""

_ASKED = re.compile(r"(KeyboardInterrupt|SystemExit|[\w.]*SignalException)\b")
_RANK = re.compile(r"^\[rank\d+\]: ?")


def unmarked(lines: Sequence[str]) -> List[str]:
    """Return the lines without the number of the rank that torch puts before them."""
    return [_RANK.sub("", line) for line in lines]


def split(lines: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Return the lines before the last traceback, and that; or no lines, and the last ones."""
    start, end = _last(lines)
    if start == end:
        return [], list(lines[-SHOWN:])
    return [line for line in lines[:start] if line.strip()], list(lines[start:end])


def raised(lines: Sequence[str]) -> str:
    """Return the exception that ended a program, by the last lines of its log; "" for none.

    Not one after which it said much more, nor how a program ends that was told to.
    """
    start, end = _last(lines)
    later = [line for line in lines[end:] if line.strip()]
    if start == end or len(later) > LATER:
        return ""
    words = [line for line in lines[start + 1 : end] if line.strip()]
    while words and words[0][0] == " ":
        words.pop(0)
    text = "\n".join(words)[:LONGEST]
    return "" if _ASKED.match(text) else text


def _last(lines: Sequence[str]) -> Tuple[int, int]:
    """Return where the last traceback begins and ends: frames are indented, then the exception."""
    starts = [at for at, line in enumerate(lines) if line.strip() == TRACEBACK]
    if not starts:
        return len(lines), len(lines)
    at = starts[-1] + 1
    while at < len(lines) and (not lines[at].strip() or lines[at][0] == " "):
        at += 1
    while at < len(lines) and lines[at].strip():
        at += 1
    return starts[-1], at
