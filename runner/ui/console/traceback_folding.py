"""Folding of tracebacks: one line for each that is known already.

That is one that only follows from another rank's failure, and one that another rank has shown.
Pure: the caller passes the time. The lines of a stream wait from a traceback on, for as long as
that is being written. One whose exception tells of a closed connection, or of a signal, waits
longer: the failure that it follows from is mostly reported after it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from runner.core.outcome.known_failures import is_secondary_error
from runner.core.outcome.tracebacks import (
    MAX_EXCEPTION_CHARS,
    TRACEBACK,
    Traceback,
    find_tracebacks,
    is_stop_exception,
)
from runner.core.text import counted
from runner.ui.console.lines import NO_RANK, Source, Stream

WRITING_S = 0.3  # time in which a traceback is written
HOLD_S = 3.0  # time for which a stream's lines wait at most
SETTLED_S = 1.0  # time after which what the failed rank wrote, or an earlier one, has arrived
HOLD_LINES, HOLD_BYTES = 500, 1 << 17  # more lines of a stream do not wait
MAX_KNOWN = 100  # tracebacks that are compared with later ones
MIN_EXCEPTION_CHARS = 24  # that are shown, however narrow the terminal is
MARKS = 6  # columns left for a prefix's brackets and marks

_BRACKETED = re.compile(r"\[[^][]*\](:\d+)?")
_START = TRACEBACK.encode()


@dataclass
class _HeldLines:
    """The lines of a stream since a traceback began."""

    since: float
    follows: bool  # it began long after the first failure
    lines: bytes
    _parsed: tuple[int, list[Traceback]] = (0, [])  # with the length of `lines` at that time

    @property
    def tracebacks(self) -> list[Traceback]:
        """The tracebacks among the lines, which are searched once for each new piece."""
        if self._parsed[0] != len(self.lines):
            text = self.lines.decode(errors="surrogateescape").split("\n")
            self._parsed = (len(self.lines), find_tracebacks(text))
        return self._parsed[1]


class TracebackFolder:
    """The streams whose lines wait, and the first failure as far as it is known."""

    def __init__(
        self,
        columns: Callable[[], int],
        bare: Callable[[Source, bytes], bytes] = lambda _, lines: lines,
        *,
        is_active: bool = True,
    ) -> None:
        """Start without a failure; `columns` returns the width of the terminal.

        `bare` returns lines without what differs from node to node.
        """
        self._columns = columns
        self._bare = bare
        self._is_active = is_active
        self._held: dict[Stream, _HeldLines] = {}
        self._first_failure: tuple[str, int | None] | None = None
        self._known_at = math.inf
        self._known: dict[bytes, Source] = {}  # tracebacks, and who showed them

    def fold_except(self, node: str, rank: int | None, now: float) -> None:
        """Fold tracebacks from now on, except those of the rank that failed first.

        Without a rank, those of its node are kept whole. `now` is infinite if lines that come
        later may have been written before the failure.
        """
        self._first_failure = (node, rank)
        self._known_at = now

    def keep_whole(self) -> None:
        """Fold no more tracebacks: the ranks are started again."""
        self._first_failure = None
        self._known_at = math.inf
        self._known.clear()

    def feed(self, stream: Stream, lines: bytes, now: float) -> bytes | None:
        """Take lines; return those to show at once, or None."""
        held = self._held.get(stream)
        before = b""
        if held is not None:
            held.lines += b"\n" + lines
        else:
            start = lines.find(_START) if self._is_active else -1
            if start < 0 or stream[0].rank == NO_RANK:
                return lines
            start = lines.rfind(b"\n", 0, start) + 1
            before = lines[:start]
            held = _HeldLines(now, now - self._known_at >= SETTLED_S, lines[start:])
            self._held[stream] = held
        if len(held.lines) > HOLD_BYTES or held.lines.count(b"\n") >= HOLD_LINES:
            return before + self._pop(stream)
        return before[:-1] if before else None

    def pop_due(self, now: float = math.inf) -> list[tuple[Stream, bytes]]:
        """Remove and return the lines that need not wait any longer, by default all."""
        due = [stream for stream, held in self._held.items() if self._is_due(held, now)]
        return [(stream, self._pop(stream)) for stream in due]

    def _is_due(self, held: _HeldLines, now: float) -> bool:
        if now - held.since < WRITING_S:
            return False
        if now - held.since >= HOLD_S:
            return True
        if any(not each.exception for each in held.tracebacks):  # it is still being written
            return False
        return self._first_failure is not None or not any(map(_is_secondary, held.tracebacks))

    def _is_consequence(self, source: Source, held: _HeldLines, traceback: Traceback) -> bool:
        if self._first_failure is None:
            return False
        node, rank = self._first_failure
        if source.node == node and rank in (None, source.rank):
            return False
        return held.follows or _is_secondary(traceback)

    def _pop(self, stream: Stream) -> bytes:
        """Remove the lines of a stream; return them with each known traceback in one line."""
        source = stream[0]
        held = self._held.pop(stream)
        lines = held.lines.split(b"\n")
        shown = list[bytes]()
        end = 0
        for traceback in held.tracebacks:
            if not traceback.exception:
                continue
            why = "whole in logs"
            if not self._is_consequence(source, held, traceback):
                text = self._bare(source, b"\n".join(lines[traceback.start : traceback.end]))
                first = self._known.setdefault(text, source)
                if first == source:
                    continue
                why = f"as rank {first.rank}"
            shown += lines[end : traceback.start]
            before = lines[traceback.start].partition(_START)[0]
            if not before.startswith(b"[rank") and before.strip():  # an unfinished progress bar
                shown.append(before)
            room = self._columns() - len(source.label) - MARKS
            shown.append(_summary(traceback, room, why).encode(errors="surrogateescape"))
            end = traceback.end
        if len(self._known) > MAX_KNOWN:
            self._known.clear()
        return b"\n".join(shown + lines[end:])


def _is_secondary(traceback: Traceback) -> bool:
    exception = "\n".join(traceback.exception)
    return is_secondary_error(exception) or is_stop_exception(exception)


def _summary(traceback: Traceback, room: int, why: str) -> str:
    """Return a line of `room` columns for a traceback, whose exception is cut if it is too long.

    What stands in brackets goes first (files and addresses), then what comes after its first
    sentence, then its type, then its end.
    """
    size = counted(traceback.end - traceback.start, "line")
    before = f"{size} of a traceback: "
    after = f" ({why})"
    limit = max(room - len(before) - len(after), MIN_EXCEPTION_CHARS)
    limit = min(limit, MAX_EXCEPTION_CHARS)
    exception = traceback.exception[0].rstrip()
    if len(exception) > limit:
        exception = " ".join(_BRACKETED.sub(" ", exception).split()).replace(" .", ".")
    sentence = exception.partition(". ")[0]
    if len(exception) > limit and len(sentence) >= MIN_EXCEPTION_CHARS:  # no abbreviation
        exception = sentence
    if len(exception) > limit:
        name, _, message = exception.partition(": ")
        exception = f"… {message or name}"
    if len(exception) > limit:
        exception = f"{exception[: limit - 1]}…"
    return before + exception + after
