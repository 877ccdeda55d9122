"""Failure detector: judge a peer by its silence, but never right after a pause of our own.

Pure: the caller says when it checks and how long a peer has been silent. The controller uses it for
its nodes, and the supervisors use it for each other.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Optional, Tuple

PAUSE_S = 1.0
"""A process that did not check for this long was suspended, got no CPU, or waited for a disk."""

MAX_PAUSES = 64  # of our own that are remembered

NEVER = float("inf")


class FailureDetector:
    """Judges peers that are silent for longer than `lost_s` seconds.

    After a pause of our own, messages that arrived meanwhile are read first: nobody is judged. The
    pause does not count as silence: what held us up may have held up the peers for a bit longer.
    """

    def __init__(self, lost_s: float = NEVER) -> None:
        self._lost_s = lost_s
        self._may_judge = True
        self._last_check = NEVER
        self._judge_from = 0.0
        self._pauses: Deque[Tuple[float, float]] = deque(maxlen=MAX_PAUSES)  # end, seconds

    def check(self, now: float) -> bool:
        """Note that peers are checked at monotonic time `now`; return whether they may be judged.

        To be called often: a long time since the last call is a pause. One who pauses at every turn
        judges at every other one.
        """
        if now > self._last_check + PAUSE_S:
            self._pauses.append((now, now - self._last_check - PAUSE_S))
            self._judge_from = now + PAUSE_S if self._may_judge else now
        self._last_check = now
        self._may_judge = now >= self._judge_from
        return self._may_judge

    def is_lost(self, silence_s: float, lost_s: Optional[float] = None) -> bool:
        """Return whether `silence_s` seconds without a message are too long, if one may judge.

        `lost_s` overrides the limit.
        """
        since = self._last_check - silence_s
        silence_s -= sum(
            min(paused_s, end - since) for end, paused_s in self._pauses if end > since
        )
        return self._may_judge and silence_s > (self._lost_s if lost_s is None else lost_s)
