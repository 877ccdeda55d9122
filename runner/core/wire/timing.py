"""Timing: limits on which the controller and hosts agree, and the detector of who is silent."""

from __future__ import annotations

from collections import deque
from typing import Deque, Optional, Tuple

# Controllers and agents
PING_S = (
    2.0  # the longest time between two pings of a controller; a short `lost_s` makes it shorter
)
CONTROLLER_TIMEOUT_S = 60.0  # an agent without a message has lost its controller, whatever TCP says
ANSWER_TIMEOUT_S = 300.0  # for the next part of an answer of a host that answers pings
WORK_TIMEOUT_S = 3600.0  # likewise, if it reports that it works on it
SETUP_TIMEOUT_S = 120.0  # for the lines of `cluster.setup`, each time they run
DISK_TIMEOUT_S = 5.0  # a host that waits for its disk for this long says so

# Supervisors of an attempt
HEARTBEAT_S = 2.0  # between two states; less if `lost_s` is short
HUB_TIMEOUT_S = 10.0  # without the hub, before a supervisor reports that; it keeps trying
HUB_REPORT_TIMEOUT_S = HUB_TIMEOUT_S + 5.0  # for all supervisors to report whether they reached it
JOIN_TIMEOUT_S = 60.0  # for hosts to meet in an attempt that no launch has begun
MAX_BACKOFF_S = 300.0  # the longest pause before a relaunch
DECISION_TIMEOUT_S = 90.0  # for the hosts to decide on a relaunch among themselves

# Ends
KILL_TIMEOUT_S = 10.0  # of surviving SIGKILL (a wedged driver), before a process is reported
UNRESPONSIVE_S = KILL_TIMEOUT_S + 3.0  # beyond the grace; an agent takes a supervisor for hung then
STOP_TIMEOUT_S = UNRESPONSIVE_S + 3.0  # beyond the grace, for a host to prove its stop
COMMAND_KILL_TIMEOUT_S = KILL_TIMEOUT_S + 2.0  # for hosts to end a command after Ctrl-C
ENGINE_TIMEOUT_S = 40.0  # for an engine to remove a container; stops may take it, too
NOTIFICATION_TIMEOUT_S = 30.0  # for a notification to all targets; then commands are killed

# A process that did not check for this long was suspended, got no CPU, or waited for a disk.
PAUSE_S = 1.0
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
