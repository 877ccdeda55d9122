"""Failure detector: judge a peer by its silence, but never right after a pause of our own.

Pure: the caller says when it checks and how long a peer has been silent. The controller uses it for
its nodes, and the supervisors use it for each other.
"""

from __future__ import annotations

import enum
from typing import Optional

from runner.core.local_pause import LocalPauseDetector


class Liveness(enum.Enum):
    """What the silence of a peer means."""

    ALIVE = "alive"
    SUSPECTED = "suspected"
    """Heartbeats are missing; a new connection is worth a try."""
    LOST = "lost"


class FailureDetector:
    """Judges peers by their silence.

    Args:
        lost_s: A peer that is silent for longer is lost.
        suspect_s: A peer that is silent for longer is suspected; None for never.

    Attributes:
        suspect_s: A peer that is silent for longer is suspected.
        may_judge: Whether the last check came soon enough after the one before. After a pause of
            our own, messages that arrived meanwhile are read first.
    """

    def __init__(self, lost_s: float, suspect_s: Optional[float] = None) -> None:
        self.may_judge = True
        self._lost_s = lost_s
        self.suspect_s = float("inf") if suspect_s is None else suspect_s
        self._pauses = LocalPauseDetector()

    def check(self, now: float) -> bool:
        """Note that peers are checked at `now`; return whether they may be judged."""
        self.may_judge = self._pauses.may_judge(now)
        return self.may_judge

    def judge(self, silence_s: float, lost_s: Optional[float] = None) -> Liveness:
        """Return what `silence_s` seconds without a message mean; `lost_s` overrides the limit."""
        if self.may_judge and silence_s > (self._lost_s if lost_s is None else lost_s):
            return Liveness.LOST
        if self.may_judge and silence_s > self.suspect_s:
            return Liveness.SUSPECTED
        return Liveness.ALIVE
