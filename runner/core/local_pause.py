"""Judging the silence of others: only who listened all the while can tell."""

from __future__ import annotations

ASLEEP_S = 1.0
"""Who did not look for so long was stopped, got no CPU, or waited for a disk."""


class Awake:
    """Whether we have looked often enough of late.

    After a sleep, what came meanwhile is heard first; only then does anybody count as silent.
    """

    def __init__(self) -> None:
        self._last = float("inf")
        self._judge_from = 0.0

    def look(self, now: float) -> bool:
        """Take note that we look, at `now` on the monotonic clock; return whether we may judge."""
        if now > self._last + ASLEEP_S:
            self._judge_from = now + ASLEEP_S
        self._last = now
        return now >= self._judge_from
