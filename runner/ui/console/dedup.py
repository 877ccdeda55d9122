"""The same line from many ranks, once: what arrives waits a moment for its like.

Pure: whoever adds says what time it is. Order per rank and stream is kept: a rank joins a waiting
line only behind everything of its own that waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

HOLD_S = 0.15
"""How long a line waits; with the writer's own rhythm a fifth of a second."""

FLOOD_LINES, FLOOD_BYTES = 2000, 1 << 18
"""More than this within the time is a flood, which is shown as it comes."""

FLOOD_CHUNK_LINES = 64
"""A piece of more lines than this is no message but a flood."""


class Source(NamedTuple):
    """Who wrote a line."""

    node: str
    rank: int


@dataclass
class PendingLine:
    """A line, on the stream `descriptor`, and who wrote it so far."""

    number: int
    since: float
    descriptor: int
    line: bytes
    sources: list[Source] = field(default_factory=list)


class LineDeduplicator:
    """Lines that wait for their like, in order of arrival."""

    def __init__(self) -> None:
        self._pending: deque[PendingLine] = deque()
        self._by_text: dict[tuple[int, bytes], deque[PendingLine]] = {}
        self._last_number: dict[Source, int] = {}
        self._number = 0
        self._window_start = 0.0
        self._window_lines = self._window_bytes = 0

    def accepts(self, lines: bytes, now: float) -> bool:
        """Whether the flow is slow enough for these lines to wait."""
        count = lines.count(b"\n") + 1
        if now - self._window_start >= HOLD_S:
            self._window_start, self._window_lines, self._window_bytes = now, 0, 0
        self._window_lines += count
        self._window_bytes += len(lines)
        is_small = count <= FLOOD_CHUNK_LINES
        return is_small and self._window_lines <= FLOOD_LINES and self._window_bytes <= FLOOD_BYTES

    def add(self, source: Source, descriptor: int, lines: bytes, now: float) -> None:
        """Let lines wait."""
        for line in lines.split(b"\n"):
            self._add(source, descriptor, line, now)

    def _add(self, source: Source, descriptor: int, line: bytes, now: float) -> None:
        last_number = self._last_number.get(source, 0)
        candidates = self._by_text.setdefault((descriptor, line), deque())
        pending = next(
            (candidate for candidate in candidates if candidate.number > last_number), None
        )
        if pending is None:
            self._number += 1
            pending = PendingLine(self._number, now, descriptor, line)
            self._pending.append(pending)
            candidates.append(pending)
        pending.sources.append(source)
        self._last_number[source] = pending.number

    def pop_due(self, now: float) -> list[PendingLine]:
        """Take out what has waited long enough."""
        ready = []
        while self._pending and now - self._pending[0].since >= HOLD_S:
            pending = self._pending.popleft()
            key = (pending.descriptor, pending.line)
            self._by_text[key].popleft()
            if not self._by_text[key]:
                del self._by_text[key]
            ready.append(pending)
        if not self._pending:
            self._last_number.clear()
        return ready

    def pop_all(self) -> list[PendingLine]:
        """Take out everything."""
        pending = list(self._pending)
        self._pending.clear()
        self._by_text.clear()
        self._last_number.clear()
        return pending
