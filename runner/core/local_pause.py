"""Local pause detector: a process that was suspended does not declare its peers silent."""

from __future__ import annotations

PAUSE_S = 1.0
"""A process that did not check for this long was suspended, got no CPU, or waited for a disk."""


class LocalPauseDetector:
    """Detector of our own pauses: after one, messages that arrived meanwhile are read first."""

    def __init__(self) -> None:
        self._last_check = float("inf")
        self._judge_from = 0.0

    def may_judge(self, now: float) -> bool:
        """Return whether silence may be judged at monotonic time `now`; to be called often."""
        if now > self._last_check + PAUSE_S:
            self._judge_from = now + PAUSE_S
        self._last_check = now
        return now >= self._judge_from
