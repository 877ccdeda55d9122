"""What a program said last: the traceback in a log, and the exception that ended it."""

from __future__ import annotations

import re
from typing import List, Sequence, Tuple

TRACEBACK = "Traceback (most recent call last):"

SHOWN = 10
"""Lines that stand for a log without a traceback."""

LATER = 20
"""Lines that may follow the traceback of an exception that ended a program: what libraries say as
they are torn down."""

LONGEST = 400
"""Characters of an exception that are kept."""

_RANK = re.compile(r"^\[rank\d+\]: ?")
_BESIDE = re.compile(r"Exception (ignored in|in thread)\b")
_TEARDOWN = re.compile(r"\[[WEIF]|Exception (ignored|in thread)\b|terminate called\b")
_TOLD = re.compile(
    r"(KeyboardInterrupt|SystemExit|[\w.]*(SignalException|SIGTERMException))\b"
    r"|.*killed by signal: Terminated"
)


def unmarked(lines: Sequence[str]) -> List[str]:
    """Return the lines without the number of the rank that torch puts before them.

    A traceback begins a line, also where a progress bar did not end its own.
    """
    whole = (_RANK.sub("", line) for line in lines)
    return [TRACEBACK if line.rstrip().endswith(TRACEBACK) else line for line in whole]


def split(lines: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Return the lines before the last traceback, and that; or no lines, and the last ones."""
    starts = tracebacks(lines)
    if not starts:
        return [], list(lines[-SHOWN:])
    start, end = starts[-1], _after_frames(lines, starts[-1])
    while end < len(lines) and lines[end].strip():
        end += 1
    return [line for line in lines[:start] if line.strip()], list(lines[start:end])


def raised(lines: Sequence[str]) -> str:
    """Return the exception that ended a program, by the last lines of its log; "" for none.

    Not one after which it said much more, not one of a thread beside, nor how a program ends that
    was told to.
    """
    starts = [at for at in tracebacks(lines) if not _BESIDE.match(_line_before(lines, at))]
    if not starts:
        return ""
    begin = end = _after_frames(lines, starts[-1])
    while end < len(lines) and lines[end].strip() and not _TEARDOWN.match(lines[end]):
        end += 1
    text = "\n".join(lines[begin:end])[:LONGEST]
    later = sum(1 for line in lines[end:] if line.strip())
    return "" if later > LATER or _TOLD.match(text) else text


def tracebacks(lines: Sequence[str]) -> List[int]:
    """Return where tracebacks begin."""
    return [at for at, line in enumerate(lines) if line.strip() == TRACEBACK]


def _line_before(lines: Sequence[str], at: int) -> str:
    return next((line for line in reversed(lines[:at]) if line.strip()), "")


def _after_frames(lines: Sequence[str], start: int) -> int:
    """Return where the exception of a traceback stands: frames are indented."""
    at = start + 1
    while at < len(lines) and (not lines[at].strip() or lines[at][0] == " "):
        at += 1
    return at
