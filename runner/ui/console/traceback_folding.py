"""Folding of tracebacks: one line for each that is known already.

That is one whose exception tells of a closed connection of torch's or of a stop, and so follows
from another failure, and one that another rank has shown. Pure: the caller passes the time. The
lines of a stream wait from a traceback on, for as long as that is being written.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from runner.core.wire.paths import NO_RANK
from runner.core.wire.tracebacks import (
    MAX_EXCEPTION_CHARS,
    TRACEBACK,
    Traceback,
    find_tracebacks,
    is_secondary_error,
    is_stop_exception,
    strip_rank_prefix,
)
from runner.ui.console.lines import Source, Stream

WRITING_S = 0.3  # time in which a traceback is written
SETTLED_S = 1.0  # time in which what it follows from has come, too
HOLD_S = 3.0  # time for which a stream's lines wait at most
HOLD_BYTES = 1 << 17  # more of a stream does not wait
MAX_KNOWN = 100  # tracebacks that are compared with later ones

_PLACE = re.compile(r" ?\[[^][\s]*[/.:][^][\s]*\](:\d+)?")  # a file or an address
_START = TRACEBACK.encode()


@dataclass
class _HeldLines:
    since: float
    lines: bytes


class TracebackFolder:
    def __init__(self) -> None:
        self._held: dict[Stream, _HeldLines] = {}
        self._shown_by: dict[str, Source] = {}  # tracebacks, and who showed them

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
            held = _HeldLines(now, lines[start:])
            self._held[stream] = held
        if len(held.lines) <= HOLD_BYTES:
            return before
        shown = self._pop(stream)
        return shown if before is None else before + b"\n" + shown

    def pop_due(self, now: float = math.inf) -> list[tuple[Stream, bytes]]:
        """Remove and return the lines that need not wait any longer, by default all."""
        due = [stream for stream, held in self._held.items() if self._is_due(held, now)]
        return [(stream, self._pop(stream)) for stream in due]

    def _is_due(self, held: _HeldLines, now: float) -> bool:
        waited_s = now - held.since
        tracebacks = _parse(held.lines)
        if waited_s >= HOLD_S or any(not each.exception for each in tracebacks):
            return waited_s >= HOLD_S
        return waited_s >= (SETTLED_S if any(map(_follows, tracebacks)) else WRITING_S)

    def _pop(self, stream: Stream) -> bytes:
        """Remove the lines of a stream; return them with each known traceback in one line."""
        source = stream[0]
        held = self._held.pop(stream)
        lines = held.lines.decode(errors="surrogateescape").split("\n")
        shown: list[str] = []
        end = 0
        for traceback in _parse(held.lines):
            if not traceback.exception:
                continue
            why = "in logs"
            if not _follows(traceback):
                text = "\n".join(strip_rank_prefix(lines[traceback.start : traceback.end]))
                first = self._shown_by.setdefault(text, source)
                if first == source:
                    continue
                why = f"as rank {first.rank}"
            shown += lines[end : traceback.start]
            # Places differ between ranks; without them their lines are equal, and are one.
            told = _PLACE.sub("", traceback.exception[0][:MAX_EXCEPTION_CHARS]).rstrip()
            shown.append(f"traceback ({why}): {told}")
            end = traceback.end
        if len(self._shown_by) > MAX_KNOWN:
            self._shown_by.clear()
        return "\n".join(shown + lines[end:]).encode(errors="surrogateescape")


def _parse(lines: bytes) -> list[Traceback]:
    return find_tracebacks(lines.decode(errors="surrogateescape").split("\n"))


def _follows(traceback: Traceback) -> bool:
    """Return whether it only tells of another failure, or of a stop."""
    exception = "\n".join(traceback.exception)
    return is_secondary_error(exception) or is_stop_exception(exception)
