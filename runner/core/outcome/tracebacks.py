"""What a program said last: the traceback in a log, and the exception that ended it."""

from __future__ import annotations

import re
from typing import List, Sequence, Tuple

TRACEBACK = "Traceback (most recent call last):"

EXCERPT_LINES = 10
"""Lines that stand for a log without a traceback."""

MAX_LINES_AFTER = 20
"""Lines that may follow the traceback of an exception that ended a program: what libraries say as
they are torn down."""

MAX_EXCEPTION_CHARS = 400
"""Characters of an exception that are kept."""

_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_OTHER_THREAD = re.compile(r"Exception (ignored in|in thread)\b")
_TEARDOWN = re.compile(r"\[[WEIF]|Exception (ignored|in thread)\b|terminate called\b")
_STOP_EXCEPTION = re.compile(
    r"(KeyboardInterrupt|SystemExit|[\w.]*(SignalException|SIGTERMException))\b"
    r"|.*killed by signal: Terminated"
)


def strip_rank_prefix(lines: Sequence[str]) -> List[str]:
    """Return the lines without the number of the rank that torch puts before them.

    A traceback begins a line, also where a progress bar did not end its own.
    """
    stripped = (_RANK_PREFIX.sub("", line) for line in lines)
    return [TRACEBACK if line.rstrip().endswith(TRACEBACK) else line for line in stripped]


def last_traceback(lines: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Return the lines before the last traceback, and that; or no lines, and the last ones."""
    starts = traceback_starts(lines)
    if not starts:
        return [], list(lines[-EXCERPT_LINES:])
    start, end = starts[-1], _exception_start(lines, starts[-1])
    while end < len(lines) and lines[end].strip():
        end += 1
    return [line for line in lines[:start] if line.strip()], list(lines[start:end])


def final_exception(lines: Sequence[str]) -> str:
    """Return the exception that ended a program, by the last lines of its log; "" for none.

    Not one after which it said much more, not one of a thread beside, nor how a program ends that
    was told to.
    """
    starts = [
        index
        for index in traceback_starts(lines)
        if not _OTHER_THREAD.match(_line_before(lines, index))
    ]
    if not starts:
        return ""
    begin = end = _exception_start(lines, starts[-1])
    while end < len(lines) and lines[end].strip() and not _TEARDOWN.match(lines[end]):
        end += 1
    text = "\n".join(lines[begin:end])[:MAX_EXCEPTION_CHARS]
    lines_after = sum(1 for line in lines[end:] if line.strip())
    return "" if lines_after > MAX_LINES_AFTER or _STOP_EXCEPTION.match(text) else text


def traceback_starts(lines: Sequence[str]) -> List[int]:
    """Return where tracebacks begin."""
    return [index for index, line in enumerate(lines) if line.strip() == TRACEBACK]


def _line_before(lines: Sequence[str], index: int) -> str:
    return next((line for line in reversed(lines[:index]) if line.strip()), "")


def _exception_start(lines: Sequence[str], start: int) -> int:
    """Return where the exception of a traceback stands: frames are indented."""
    index = start + 1
    while index < len(lines) and (not lines[index].strip() or lines[index][0] == " "):
        index += 1
    return index
