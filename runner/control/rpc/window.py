"""Window: how far a stream of bytes, up or down, may be ahead of whoever takes it.

It is ahead by what is taken of it in half a second, so that a stop overtakes the rest.
"""

from __future__ import annotations

import time

from runner.core.wire.codec import INITIAL_CREDIT

AHEAD_S = 0.5
MAX_AHEAD = 8 << 20
"""How far a stream may be ahead: in seconds of its speed, and in bytes."""

MEASURE_S = 0.25
"""How long the speed of a stream is measured."""


class Window:
    """How many bytes of one stream are under way, and how many may be."""

    def __init__(self, ahead: int = 0) -> None:
        self.ahead = ahead
        self._limit = INITIAL_CREDIT
        self._taken = 0
        self._since = time.monotonic()

    @property
    def room(self) -> int:
        """How many bytes more may be under way."""
        return max(0, self._limit - self.ahead)

    def on_taken(self, size: int) -> None:
        """Note that bytes were written, or shown."""
        self.ahead = max(0, self.ahead - size)
        self._taken += size
        elapsed_s = time.monotonic() - self._since
        if elapsed_s >= MEASURE_S:
            limit = int(AHEAD_S * self._taken / elapsed_s)
            self._limit = min(MAX_AHEAD, max(INITIAL_CREDIT, limit))
            self._taken = 0
            self._since += elapsed_s

    def grant(self) -> int:
        """Return how many bytes more may be sent, which are under way then; 0 while it is few."""
        size = self.room
        if size < self._limit // 4:
            return 0
        self.ahead += size
        return size
