"""Folding of tracebacks: one line for each that only follows from another rank's failure.

Pure: the caller passes the time. The lines of a stream wait from a traceback on, for as long as
that is being written. One whose exception tells of a closed connection, or of a signal, waits
longer: the failure that it follows from is mostly reported after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from runner.core.outcome.known_failures import is_secondary_error
from runner.core.outcome.tracebacks import (
    MAX_EXCEPTION_CHARS,
    TRACEBACK,
    Traceback,
    find_tracebacks,
    is_stop_exception,
)
from runner.core.text import counted
from runner.ui.console.dedup import NO_RANK, Source

WRITING_S = 0.3  # time in which a traceback is written
HOLD_S = 3.0  # time for which a stream's lines wait at most
SETTLED_S = 1.0  # time after which what the failed rank wrote, or an earlier one, has arrived
HOLD_LINES, HOLD_BYTES = 500, 1 << 17  # more lines of a stream do not wait
MIN_EXCEPTION_CHARS = 24  # that are shown, however narrow the terminal is
MARKS = 6  # columns left for a prefix's brackets and marks

_BRACKETED = re.compile(r"\[[^][]*\](:\d+)?")
_START = TRACEBACK.encode()


class RankLines(NamedTuple):
    """Lines that a rank wrote to the stream `descriptor`, joined by newlines."""

    source: Source
    descriptor: int
    lines: bytes


@dataclass
class _HeldLines:
    """The lines of a stream since a traceback began."""

    since: float
    follows: bool  # it began long after the first failure
    lines: bytes
    _parsed: tuple[int, list[Traceback]] = (0, [])  # with the length of `lines` at that time

    @property
    def is_too_much(self) -> bool:
        """Whether these are more lines than may wait."""
        return len(self.lines) > HOLD_BYTES or self.lines.count(b"\n") >= HOLD_LINES

    @property
    def tracebacks(self) -> list[Traceback]:
        """The tracebacks among the lines, which are searched once for each new piece."""
        if self._parsed[0] != len(self.lines):
            text = self.lines.decode(errors="surrogateescape").split("\n")
            self._parsed = (len(self.lines), find_tracebacks(text))
        return self._parsed[1]


class TracebackFolder:
    """The streams whose lines wait, and the first failure as far as it is known."""

    def __init__(self, columns: Callable[[], int]) -> None:
        """Start without a failure; `columns` returns the width of the terminal."""
        self._columns = columns
        self._held: dict[tuple[Source, int], _HeldLines] = {}
        self._first_failure: tuple[str, int | None] | None = None
        self._known_at = float("inf")

    def fold_except(self, node: str, rank: int | None, now: float) -> None:
        """Fold tracebacks from now on, except those of the rank that failed first.

        Without a rank, those of its node are kept whole. `now` is infinite if lines that come
        later may have been written before the failure.
        """
        self._first_failure, self._known_at = (node, rank), now

    def keep_whole(self) -> None:
        """Fold no more tracebacks: the ranks are started again."""
        self._first_failure, self._known_at = None, float("inf")

    def feed(self, source: Source, descriptor: int, lines: bytes, now: float) -> bytes | None:
        """Take lines; return those to show at once, or None."""
        key = (source, descriptor)
        held, before = self._held.get(key), b""
        if held is not None:
            held.lines += b"\n" + lines
        else:
            start = lines.find(_START)
            if start < 0 or source.rank == NO_RANK:
                return lines
            start = lines.rfind(b"\n", 0, start) + 1
            before, follows = lines[:start], now - self._known_at >= SETTLED_S
            held = self._held[key] = _HeldLines(now, follows, lines[start:])
        if held.is_too_much:
            return before + self._pop(key).lines
        return before[:-1] if before else None

    def pop_due(self, now: float) -> list[RankLines]:
        """Remove and return the lines that need not wait any longer."""
        due = [key for key, held in self._held.items() if self._is_due(held, now)]
        return [self._pop(key) for key in due]

    def pop_all(self) -> list[RankLines]:
        """Remove and return all lines."""
        return [self._pop(key) for key in list(self._held)]

    def _pop(self, key: tuple[Source, int]) -> RankLines:
        return RankLines(*key, self._folded(key[0], self._held.pop(key)))

    def _is_due(self, held: _HeldLines, now: float) -> bool:
        if now - held.since < WRITING_S:
            return False
        if now - held.since >= HOLD_S:
            return True
        if any(not each.exception for each in held.tracebacks):  # it is still being written
            return False
        return self._first_failure is not None or not any(map(_is_secondary, held.tracebacks))

    def _is_consequence(self, source: Source, held: _HeldLines, traceback: Traceback) -> bool:
        if self._first_failure is None or not traceback.exception:
            return False
        node, rank = self._first_failure
        if source.node == node and rank in (None, source.rank):
            return False
        return held.follows or _is_secondary(traceback)

    def _folded(self, source: Source, held: _HeldLines) -> bytes:
        """Return the lines with each traceback that is a consequence in one line."""
        lines, shown, end = held.lines.split(b"\n"), list[bytes](), 0
        for traceback in held.tracebacks:
            if not self._is_consequence(source, held, traceback):
                continue
            shown += lines[end : traceback.start]
            before = lines[traceback.start].partition(_START)[0]
            if not before.startswith(b"[rank") and before.strip():  # an unfinished progress bar
                shown.append(before)
            room = self._columns() - len(source.label) - MARKS
            shown.append(_summary(traceback, room).encode(errors="surrogateescape"))
            end = traceback.end
        return b"\n".join(shown + lines[end:])


def _is_secondary(traceback: Traceback) -> bool:
    exception = "\n".join(traceback.exception)
    return is_secondary_error(exception) or is_stop_exception(exception)


def _summary(traceback: Traceback, room: int) -> str:
    """Return a line of `room` columns for a traceback."""
    size = counted(traceback.end - traceback.start, "line")
    before, after = f"{size} of a traceback: ", " (whole in logs)"
    limit = max(room - len(before) - len(after), MIN_EXCEPTION_CHARS)
    exception = _shorten(traceback.exception[0].rstrip(), min(limit, MAX_EXCEPTION_CHARS))
    return before + exception + after


def _shorten(exception: str, limit: int) -> str:
    """Return an exception in `limit` characters.

    Where it is too long, what stands in brackets goes first (files and addresses), then what comes
    after the first sentence of its message, then its type, then the end of that sentence.
    """
    if len(exception) <= limit:
        return exception
    name, _, full_message = exception.partition(": ")
    message = " ".join(_BRACKETED.sub(" ", full_message).split()).replace(" .", ".")
    sentence = message.partition(". ")[0]
    if len(sentence) < MIN_EXCEPTION_CHARS:  # a number, or an abbreviation
        sentence = message
    if not message:
        return _cut_end(exception, limit)
    start = "… " if full_message.startswith("[") else ""
    typed = (f"{name}: … {message}", f"{name}: {start}{sentence}")
    for text in (*typed, start + sentence):
        if len(text) <= limit:
            return text
    has_room = limit - len(f"{name}: {start}") >= MIN_EXCEPTION_CHARS
    return _cut_end(f"{name}: {start}{sentence}" if has_room else start + sentence, limit)


def _cut_end(text: str, limit: int) -> str:
    """Return the beginning of a text that is too long: to a blank, or into a long word."""
    begin = text[: limit - 1].rpartition(" ")[0]
    if len(begin) < limit // 2:
        return f"{text[: limit - 1]}…"
    return f"{begin} …"
