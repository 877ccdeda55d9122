"""Tracebacks: those in a log, the last one, and the exception that ended a program."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Sequence, Tuple

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
_OBJECT_DUMP = re.compile(r"object (address  : 0x|refcount : \d)")  # CPython's _PyObject_Dump
_CHAINED = re.compile(
    r"During handling of the above exception, another|The above exception was the direct cause of"
)
_BY_TORCH = re.compile(
    r"\bgloo/|ProcessGroup|\bDist\w*Error\b|TCPStore|\bc10d\b|NCCL|"
    r"^RuntimeError: (?=Connection reset|Broken pipe)"  # torch 2.0; Python's own is an OSError
)
_PEER_GONE = re.compile(
    r"closed by (?:remote )?peer|reset by peer|Broken pipe|got 0 bytes", re.IGNORECASE
)
_SECONDARY_ERROR = re.compile(
    r"Connection was likely closed|ncclRemoteError|remote process exited|Watchdog caught collective"
)
_AFTER_EXCEPTION = re.compile(f"{_TEARDOWN.pattern}|{_CHAINED.pattern}")


class Traceback(NamedTuple):
    """A traceback in a log, with those of the exceptions that it is chained to."""

    start: int  # the index of its first line
    end: int  # the index after its last one
    exception: Tuple[str, ...]  # the lines of the last exception; () if that is not there yet


def strip_rank_prefix(lines: Sequence[str]) -> List[str]:
    """Return the lines without torch's rank prefix, and tracebacks without a progress bar."""
    stripped = (_RANK_PREFIX.sub("", line) for line in lines)
    return [TRACEBACK if line.rstrip().endswith(TRACEBACK) else line for line in stripped]


def find_tracebacks(lines: Sequence[str]) -> List[Traceback]:
    """Return the tracebacks among lines as they were written.

    An exception is one line, unless torch's rank prefix tells which ones belong to it.
    """
    stripped = strip_rank_prefix(lines)
    found: List[Traceback] = []
    end = 0
    for start in traceback_starts(stripped):
        if start < end:
            continue
        exception, end = _exception_span(lines, stripped, start)
        while (chained := _chained_start(stripped, end)) is not None:
            exception, end = _exception_span(lines, stripped, chained)
        found.append(Traceback(start, end, tuple(stripped[exception:end])))
    return found


def is_stop_exception(text: str) -> bool:
    """Return whether an exception was raised because the program was told to stop."""
    return _STOP_EXCEPTION.match(text) is not None


def is_secondary_error(error: str) -> bool:
    """Return whether a rank with this error only noticed the end of another one.

    Words of the operating system alone do not say so: any server may close a connection.
    """
    says_gone = _PEER_GONE.search(error) and _BY_TORCH.search(error)
    return bool(says_gone or _SECONDARY_ERROR.search(error))


def last_traceback(lines: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Return the lines before the last traceback, and that; or no lines, and the last ones."""
    starts = traceback_starts(lines)
    if not starts:
        return [], list(lines[-EXCERPT_LINES:])
    start = starts[-1]
    end = _exception_start(lines, start)
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
    return "" if lines_after > MAX_LINES_AFTER or is_stop_exception(text) else text


def traceback_starts(lines: Sequence[str]) -> List[int]:
    return [index for index, line in enumerate(lines) if line.strip() == TRACEBACK]


def _line_before(lines: Sequence[str], index: int) -> str:
    return next((line for line in reversed(lines[:index]) if line.strip()), "")


def _exception_start(lines: Sequence[str], start: int) -> int:
    """Return the index of a traceback's exception: the first line that is not indented.

    There is none where Python could not write it, or all of it, on a full disk: it dumps the object
    instead.
    """
    index = start + 1
    while index < len(lines) and (not lines[index].strip() or lines[index][0] == " "):
        index += 1
    was_dumped = index < len(lines) and bool(_OBJECT_DUMP.search(lines[index]))
    return len(lines) if was_dumped else index


def _exception_span(lines: Sequence[str], stripped: Sequence[str], start: int) -> Tuple[int, int]:
    """Return the indices of the exception of a traceback, and after it."""
    begin = _exception_start(stripped, start)
    end = min(begin + 1, len(lines))
    while end < len(lines) and _RANK_PREFIX.match(lines[start]) and _RANK_PREFIX.match(lines[end]):
        if _AFTER_EXCEPTION.match(stripped[end]) or stripped[end].strip() == TRACEBACK:
            break
        end += 1
    return begin, end


def _chained_start(lines: Sequence[str], end: int) -> Optional[int]:
    """Return the index of the traceback that is chained to the one before `end`, if any."""
    following = [index for index in range(end, min(end + 4, len(lines))) if lines[index].strip()]
    if len(following) > 1 and _CHAINED.match(lines[following[0]]):
        return following[1] if lines[following[1]].strip() == TRACEBACK else None
    return None
