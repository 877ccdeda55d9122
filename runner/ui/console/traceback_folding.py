"""Folding of tracebacks: one line for each that is known already.

That is one that only follows from another rank's failure, and one that another rank has shown.
Pure: the caller passes the time. The lines of a stream wait from a traceback on, for as long as
that is being written. One whose exception tells of a closed connection, or of a signal, waits
longer: the failure that it follows from is mostly reported after it.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from runner.core.outcome.tracebacks import (
    MAX_EXCEPTION_CHARS,
    TRACEBACK,
    Traceback,
    find_tracebacks,
    is_secondary_error,
    is_stop_exception,
    strip_rank_prefix,
)
from runner.ui.console.lines import MAX_NAMES_WIDTH, NO_RANK, Source, Stream

WRITING_S = 0.3  # time in which a traceback is written
HOLD_S = 3.0  # time for which a stream's lines wait at most
SETTLED_S = 1.0  # time after which what the failed rank wrote, or an earlier one, has arrived
HOLD_LINES, HOLD_BYTES = 500, 1 << 17  # more lines of a stream do not wait
MAX_KNOWN = 100  # tracebacks that are compared with later ones
MIN_EXCEPTION_CHARS = 24  # that are shown, however narrow the terminal is
PREFIX = MAX_NAMES_WIDTH + 9  # columns of the longest prefix, of many ranks

_PLACE = re.compile(r" ?\[[^][\s]*[/.:][^][\s]*\](:\d+)?")  # a file or an address
_START = TRACEBACK.encode()


@dataclass
class _HeldLines:
    """The lines of a stream since a traceback began."""

    since: float
    follows: bool  # it began long after the first failure
    lines: bytes


class TracebackFolder:
    """The streams whose lines wait, and the first failure as far as it is known."""

    def __init__(self, columns: Callable[[], int]) -> None:
        """Start without a failure; `columns` returns the width of the terminal."""
        self._columns = columns
        self._held: dict[Stream, _HeldLines] = {}
        self._first_failure: tuple[str, int | None] | None = None
        self._known_at = math.inf
        self._shown_by: dict[str, Source] = {}  # tracebacks, and who showed them

    def fold_except(self, node: str, rank: int | None, now: float) -> None:
        """Fold tracebacks from now on, except those of the rank that failed first.

        Without a rank, those of its node are kept whole. `now` is infinite if lines that come
        later may have been written before the failure.
        """
        self._first_failure = (node, rank)
        self._known_at = now

    def feed(self, stream: Stream, lines: bytes, now: float) -> bytes | None:
        """Take lines; return those to show at once, or None."""
        held = self._held.get(stream)
        before: bytes | None = None
        if held is not None:
            held.lines += b"\n" + lines
        else:
            start = lines.find(_START)
            if start < 0 or stream[0].rank == NO_RANK:
                return lines
            start = lines.rfind(b"\n", 0, start) + 1
            before = lines[: start - 1] if start else None
            held = _HeldLines(now, now - self._known_at >= SETTLED_S, lines[start:])
            self._held[stream] = held
        if len(held.lines) <= HOLD_BYTES and held.lines.count(b"\n") < HOLD_LINES:
            return before
        shown = self._pop(stream)
        return shown if before is None else before + b"\n" + shown

    def pop_due(self, now: float = math.inf) -> list[tuple[Stream, bytes]]:
        """Remove and return the lines that need not wait any longer, by default all."""
        due = [stream for stream, held in self._held.items() if self._is_due(held, now)]
        return [(stream, self._pop(stream)) for stream in due]

    def _is_due(self, held: _HeldLines, now: float) -> bool:
        waited_s = now - held.since
        if waited_s < WRITING_S or waited_s >= HOLD_S:
            return waited_s >= HOLD_S
        tracebacks = _parse(held.lines)
        if any(not each.exception for each in tracebacks):  # it is still being written
            return False
        return self._first_failure is not None or not any(map(_is_secondary, tracebacks))

    def _is_consequence(self, source: Source, held: _HeldLines, traceback: Traceback) -> bool:
        if self._first_failure is None:
            return False
        node, rank = self._first_failure
        is_of_failed = source.node == node and rank in (None, source.rank)
        return not is_of_failed and (held.follows or _is_secondary(traceback))

    def _pop(self, stream: Stream) -> bytes:
        """Remove the lines of a stream; return them with each known traceback in one line."""
        source = stream[0]
        held = self._held.pop(stream)
        lines = held.lines.decode(errors="surrogateescape").split("\n")
        room = max(self._columns() - PREFIX, MIN_EXCEPTION_CHARS)
        shown: list[str] = []
        end = 0
        for traceback in _parse(held.lines):
            if not traceback.exception:
                continue
            why = "in logs"
            if not self._is_consequence(source, held, traceback):
                text = "\n".join(strip_rank_prefix(lines[traceback.start : traceback.end]))
                first = self._shown_by.setdefault(text, source)
                if first == source:
                    continue
                why = f"as rank {first.rank}"
            shown += lines[end : traceback.start]
            # Places differ between ranks; without them their lines are equal, and are one.
            exception = _PLACE.sub("", traceback.exception[0][:MAX_EXCEPTION_CHARS]).rstrip()
            summary = f"traceback ({why}): {exception}"
            shown.append(summary if len(summary) <= room else f"{summary[: room - 1]}…")
            end = traceback.end
        if len(self._shown_by) > MAX_KNOWN:
            self._shown_by.clear()
        return "\n".join(shown + lines[end:]).encode(errors="surrogateescape")


@functools.lru_cache(maxsize=256)
def _parse(lines: bytes) -> list[Traceback]:
    return find_tracebacks(lines.decode(errors="surrogateescape").split("\n"))


def _is_secondary(traceback: Traceback) -> bool:
    exception = "\n".join(traceback.exception)
    return is_secondary_error(exception) or is_stop_exception(exception)
