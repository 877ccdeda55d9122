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

MANY_LINES, MANY_BYTES = 2000, 1 << 18
"""More than this within the time is a flood, which is shown as it comes."""

CHUNK_LINES = 64
"""A piece of more lines than this is no message but a flood."""


class Source(NamedTuple):
    """Who wrote a line."""

    node: str
    rank: int


@dataclass
class Held:
    """A line, on the stream `descriptor`, and who wrote it so far."""

    number: int
    since: float
    descriptor: int
    line: bytes
    sources: list[Source] = field(default_factory=list)


class Folding:
    """Lines that wait for their like, in order of arrival."""

    def __init__(self) -> None:
        self._held: deque[Held] = deque()
        self._alike: dict[tuple[int, bytes], deque[Held]] = {}
        self._last: dict[Source, int] = {}
        self._number = 0
        self._window = 0.0
        self._lines = self._bytes = 0

    def takes(self, lines: bytes, now: float) -> bool:
        """Whether the flow is slow enough for these lines to wait."""
        count = lines.count(b"\n") + 1
        if now - self._window >= HOLD_S:
            self._window, self._lines, self._bytes = now, 0, 0
        self._lines += count
        self._bytes += len(lines)
        small = count <= CHUNK_LINES
        return small and self._lines <= MANY_LINES and self._bytes <= MANY_BYTES

    def add(self, source: Source, descriptor: int, lines: bytes, now: float) -> None:
        """Let lines wait."""
        for line in lines.split(b"\n"):
            self._add(source, descriptor, line, now)

    def _add(self, source: Source, descriptor: int, line: bytes, now: float) -> None:
        after = self._last.get(source, 0)
        alike = self._alike.setdefault((descriptor, line), deque())
        held = next((each for each in alike if each.number > after), None)
        if held is None:
            self._number += 1
            held = Held(self._number, now, descriptor, line)
            self._held.append(held)
            alike.append(held)
        held.sources.append(source)
        self._last[source] = held.number

    def due(self, now: float) -> list[Held]:
        """Take out what has waited long enough."""
        found = []
        while self._held and now - self._held[0].since >= HOLD_S:
            held = self._held.popleft()
            key = (held.descriptor, held.line)
            self._alike[key].popleft()
            if not self._alike[key]:
                del self._alike[key]
            found.append(held)
        if not self._held:
            self._last.clear()
        return found

    def flush(self) -> list[Held]:
        """Take out everything."""
        found = list(self._held)
        self._held.clear()
        self._alike.clear()
        self._last.clear()
        return found
