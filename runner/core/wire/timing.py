"""Timing: limits on which the controller and hosts agree, and the detector of who is silent."""

from __future__ import annotations

from collections import deque
from typing import Deque, Optional, Tuple

PING_S = 2.0
"""The longest time between two pings of a controller; a short `lost_s` makes it shorter."""

CONTROLLER_TIMEOUT_S = 60.0
"""An agent that receives nothing for this long has lost its controller, whatever TCP says."""

HEARTBEAT_S = 2.0
"""The longest time between two heartbeats of supervisors; a short `lost_s` makes it shorter."""

HUB_TIMEOUT_S = 10.0
"""A supervisor reports that it cannot reach the hub after this long; it keeps trying."""

HUB_REPORT_TIMEOUT_S = HUB_TIMEOUT_S + 5.0
"""The controller waits this long for every supervisor to report whether it reached the hub."""

JOIN_TIMEOUT_S = 60.0
"""Hosts have this long to meet in an attempt that no launch has begun."""

DISK_TIMEOUT_S = 5.0
"""A host that waits for its disk for this long says so."""

SETUP_TIMEOUT_S = 120.0
"""The lines of `cluster.setup` have this long, each time they run."""

KILL_TIMEOUT_S = 10.0
"""Processes that survive SIGKILL for this long (a wedged driver) are reported."""

UNRESPONSIVE_S = KILL_TIMEOUT_S + 3.0
"""An agent takes a supervisor for hung when its stop takes this long beyond the grace period."""

ENGINE_TIMEOUT_S = 40.0
"""An engine has this long to remove a container; stops of runs in containers may take it, too."""

ANSWER_TIMEOUT_S = 300.0
"""A host that answers pings has this long for the next part of an answer: its disk may be slow."""

WORK_TIMEOUT_S = 3600.0
"""And this long if it reports that it works on it."""

STOP_TIMEOUT_S = UNRESPONSIVE_S + 3.0
"""The controller waits this long, beyond the grace period, for a host to prove its stop."""

COMMAND_KILL_TIMEOUT_S = KILL_TIMEOUT_S + 2.0
"""The controller waits this long for hosts to end a command after Ctrl-C."""

MAX_BACKOFF_S = 300.0
"""The longest pause before a relaunch."""

DECISION_TIMEOUT_S = 90.0
"""The controller waits this long for the hosts to decide on a relaunch among themselves."""

NOTIFICATION_TIMEOUT_S = 30.0
"""A notification, to all of its targets, has this long; a command that takes longer is killed."""


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
