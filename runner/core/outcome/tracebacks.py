"""Tracebacks: the last one in a log, and the exception that ended a program."""

from __future__ import annotations

import re
from typing import List, Sequence, Tuple

TRACEBACK = "Traceback (most recent call last):"

EXCERPT_LINES = 10
"""The number of last lines that stand for a log without a traceback."""

MAX_LINES_AFTER = 20
"""The number of lines that may follow the traceback of the exception that ended a program:
messages of libraries during teardown."""

MAX_EXCEPTION_CHARS = 400
"""The number of characters of an exception that are kept."""

_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_OTHER_THREAD = re.compile(r"Exception (ignored in|in thread)\b")
_TEARDOWN = re.compile(r"\[[WEIF]|Exception (ignored|in thread)\b|terminate called\b")
_STOP_EXCEPTION = re.compile(
    r"(KeyboardInterrupt|SystemExit|[\w.]*(SignalException|SIGTERMException))\b"
    r"|.*killed by signal: Terminated"
)


def strip_rank_prefix(lines: Sequence[str]) -> List[str]:
    """Return the lines without torch's rank prefix, and tracebacks without a progress bar."""
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
    """Return the exception that ended a program, from the last lines of its log; "" for none.

    Exceptions followed by much more output, of other threads, or from being stopped do not count.
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
    """Return the indices at which tracebacks begin."""
    return [index for index, line in enumerate(lines) if line.strip() == TRACEBACK]


def truncate_middle(lines: Sequence[str]) -> Tuple[str, ...]:
    """Return the first and the last lines: those between are mostly torch's frames."""
    if len(lines) <= EXCERPT_LINES:
        return tuple(lines)
    head = 3 if lines[0].strip() == TRACEBACK else 0
    left_out = len(lines) - EXCERPT_LINES + 1
    return (*lines[:head], f"  … {left_out} lines …", *lines[-(EXCERPT_LINES - head - 1) :])


def _line_before(lines: Sequence[str], index: int) -> str:
    return next((line for line in reversed(lines[:index]) if line.strip()), "")


def _exception_start(lines: Sequence[str], start: int) -> int:
    """Return the index of a traceback's exception: the first line that is not indented."""
    index = start + 1
    while index < len(lines) and (not lines[index].strip() or lines[index][0] == " "):
        index += 1
    return index
