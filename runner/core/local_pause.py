"""Judging the silence of others: only who listened all the while can tell."""

from __future__ import annotations

PAUSE_S = 1.0
"""Who did not look for so long was stopped, got no CPU, or waited for a disk."""


class LocalPauseDetector:
    """Whether we have looked often enough of late.

    After a sleep, what came meanwhile is heard first; only then does anybody count as silent.
    """

    def __init__(self) -> None:
        self._last_check = float("inf")
        self._judge_from = 0.0

    def may_judge(self, now: float) -> bool:
        """Take note that we look, at `now` on the monotonic clock; return whether we may judge."""
        if now > self._last_check + PAUSE_S:
            self._judge_from = now + PAUSE_S
        self._last_check = now
        return now >= self._judge_from
