"""Deduplication of lines: each waits a moment for equal ones from other ranks.

Pure: the caller passes the time. The order per rank and stream is kept: a rank joins a pending
line only if that comes after all its own pending lines.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

HOLD_S = 0.15  # time that a line waits; a fifth of a second with the writer's interval
FLOOD_LINES, FLOOD_BYTES = 2000, 1 << 18  # more in that time is a flood, which is shown unchanged
FLOOD_CHUNK_LINES = 64  # a piece of more lines than this is a flood as well


NO_RANK = -1  # stands for a command on the node, which is no rank


class Source(NamedTuple):
    """The node and the rank that wrote a line."""

    node: str
    rank: int

    @property
    def label(self) -> str:
        """Its name in a prefix."""
        return self.node if self.rank == NO_RANK else f"{self.node}:{self.rank}"


@dataclass
class PendingLine:
    """A line of the stream `descriptor`, and the ranks that wrote it so far."""

    number: int
    since: float
    descriptor: int
    line: bytes
    text: bytes  # what has to be equal
    sources: list[Source] = field(default_factory=list)


class LineDeduplicator:
    """Lines that wait for equal ones, in order of arrival."""

    def __init__(self) -> None:
        self._pending: deque[PendingLine] = deque()
        self._by_text: dict[tuple[int, bytes], deque[PendingLine]] = {}
        self._last_number: dict[Source, int] = {}
        self._number = 0
        self._window_start = 0.0
        self._window_lines = self._window_bytes = 0

    def accepts(self, lines: bytes, now: float) -> bool:
        """Return whether the flow is slow enough for these lines to wait."""
        count = lines.count(b"\n") + 1
        if now - self._window_start >= HOLD_S:
            self._window_start, self._window_lines, self._window_bytes = now, 0, 0
        self._window_lines += count
        self._window_bytes += len(lines)
        is_small = count <= FLOOD_CHUNK_LINES
        return is_small and self._window_lines <= FLOOD_LINES and self._window_bytes <= FLOOD_BYTES

    def add(
        self, source: Source, descriptor: int, lines: bytes, now: float, same: bytes | None = None
    ) -> None:
        """Add lines that wait; `same` is what has to be equal, by default the whole line."""
        for line in lines.split(b"\n"):
            text = line if same is None else same
            last_number = self._last_number.get(source, 0)
            candidates = self._by_text.setdefault((descriptor, text), deque())
            pending = next((each for each in candidates if each.number > last_number), None)
            if pending is None:
                self._number += 1
                pending = PendingLine(self._number, now, descriptor, line, text)
                self._pending.append(pending)
                candidates.append(pending)
            pending.sources.append(source)
            self._last_number[source] = pending.number

    def pop_due(self, now: float) -> list[PendingLine]:
        """Remove and return the lines that have waited long enough."""
        ready = []
        while self._pending and now - self._pending[0].since >= HOLD_S:
            pending = self._pending.popleft()
            key = (pending.descriptor, pending.text)
            self._by_text[key].popleft()
            if not self._by_text[key]:
                del self._by_text[key]
            ready.append(pending)
        if not self._pending:
            self._last_number.clear()
        return ready

    def pop_all(self) -> list[PendingLine]:
        """Remove and return all lines."""
        pending = list(self._pending)
        self._pending.clear()
        self._by_text.clear()
        self._last_number.clear()
        return pending
