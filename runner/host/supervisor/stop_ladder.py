"""Stop ladder of an attempt on one host: TERM to the program, the grace, then KILL and proof.

A launcher or shim passes TERM on to the ranks themselves. What these have started serves them while
they save: it gets TERM when its rank has ended, at the latest shortly before the KILL.
"""

from __future__ import annotations

import re
import signal
import time
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Set

from runner.core.wire.events import Stopping
from runner.core.wire.order import Order
from runner.core.wire.states import Reason, ReasonKind, State
from runner.core.wire.timing import NEVER
from runner.host.process import procfs
from runner.host.ranks.tracker import RankTracker
from runner.host.storage.run_folder import EventLog
from runner.host.supervisor.program import LauncherProcess

SHORT_LIVED = re.compile(
    r"multiprocessing\.(resource_tracker|forkserver)|torch_shm_manager|/debugpy/adapter\b"
)
"""Helpers of Python, torch and debugpy that end by themselves a moment after their program."""

TERM_SPREAD_S = 0.5  # how much earlier than we a rank may have got TERM
MAX_TERM_BEFORE_KILL_S = 2.0  # a fifth of a short grace


def left_over_commands(pids: Iterable[int]) -> Dict[int, str]:
    """Return the commands of processes that a program left running, without its helpers."""
    commands = {}
    for pid in pids:
        words = procfs.read_text(f"/proc/{pid}/cmdline")
        if not SHORT_LIVED.search(words) and (command := procfs.process_command(pid)):
            commands[pid] = command
    return commands


class StopLadder:
    """Why and when an attempt ends on this host.

    Attributes:
        reason: Why the attempt stops; None while it does not.
        stopped_at: Since when it stops, monotonic; in the future while it does not.
        failed_at: When something of the task first failed here; None if nothing did before the
            stop.
        user_stopped: Whether a user wanted the end, perhaps after another reason.
        deferred_reason: Why to stop once the stacks of the ranks are written.
        left_over: What the program had left running when it ended by itself, by pid.
    """

    def __init__(self, order: Order, launcher: LauncherProcess, journal: EventLog) -> None:
        self.reason: Optional[Reason] = None
        self.stopped_at = NEVER
        self.failed_at: Optional[float] = None
        self.user_stopped = False
        self.deferred_reason: Optional[Reason] = None
        self.left_over: Dict[int, str] = {}
        self._order = order
        self._launcher = launcher
        self._journal = journal
        self._kill_at = NEVER
        self._term_sent: Set[int] = set()
        self._has_taken_term = False
        container = order.container
        self._is_apart = container is not None and bool(container.engine)  # its ranks are

    @property
    def is_stopping(self) -> bool:
        return self.reason is not None

    @property
    def grace_is_over(self) -> bool:
        return time.monotonic() >= self._kill_at

    def fail(self, failed_at: Optional[float] = None) -> None:
        """Note that something of the task failed, now if no time is given.

        What failed since the stop does not count, what failed before it does, however late it
        became known.
        """
        failed_at = time.monotonic() if failed_at is None else failed_at
        if failed_at < self.stopped_at:
            self.failed_at = min(failed_at, self.failed_at or failed_at)

    def rules_out_relaunch(self, reason: Reason) -> bool:
        """Note a final reason; return whether that is news to the others, who stop already."""
        is_known = self.reason is None or self.reason.kind is reason.kind
        is_news = not (is_known or self.user_stopped)
        if reason.is_by_user:
            self.user_stopped = True
        elif is_news:
            self.reason = reason
        return is_news

    def begin(self, reason: Reason, stopped_at: float) -> None:
        self.reason = reason
        self.stopped_at = stopped_at
        self._kill_at = stopped_at + self._order.grace_s
        self.term_launcher()
        self._launcher.cancel()
        self._journal.append(Stopping(reason), mono=stopped_at)

    def take_term(self) -> Optional[Reason]:
        """Stop as what sends TERM does, to every process of the run perhaps: a scheduler.

        Return the reason, None but for the first time.
        """
        if self._has_taken_term:
            return None
        self._has_taken_term = True
        since = time.monotonic() - TERM_SPREAD_S
        reason = Reason(ReasonKind.TERM, self._order.node)
        if self.is_stopping:
            self._journal.append(Stopping(reason), mono=since)
        else:
            self.begin(reason, since)
        return reason

    def skip_grace(self) -> None:
        self._kill_at = time.monotonic()

    def term_launcher(self) -> None:
        """Send TERM to the launcher process, if it runs; it passes it on to the ranks."""
        if self._launcher.is_running:
            self.term([self._launcher.pid])

    def term(self, pids: Iterable[int]) -> None:
        """Send TERM to processes that have not got it from us."""
        self._term_sent |= procfs.signal_all({*pids} - self._term_sent, signal.SIGTERM)

    def tick(self, ranks: RankTracker, list_alive: Callable[[], List[int]]) -> None:
        """Send TERM to what served ranks that have ended; shortly before the KILL, to the rest."""
        self.term(ranks.take_left_behind())
        if not self.is_stopping:
            return
        term_before_kill_s = min(MAX_TERM_BEFORE_KILL_S, (self._kill_at - self.stopped_at) / 5)
        if time.monotonic() >= self._kill_at - term_before_kill_s:
            alive = self._launcher.container_pids() if self._is_apart else list_alive()
            self.term({*alive} - ranks.running_with_ancestors())

    def drain(self, leftovers: Sequence[int]) -> None:
        """End what a program that is gone left behind: TERM once, then the rest of the grace."""
        if not self.is_stopping and not leftovers:
            self._kill_at = NEVER  # the other hosts may still need this one
        elif self._kill_at == NEVER:
            self.left_over.update(left_over_commands(leftovers))
            self._kill_at = time.monotonic() + self._order.grace_s
        # Podman's client without root leaves at a TERM, which it has passed on.
        if not (self._is_apart and self._launcher.pid in self._term_sent):
            self.term(leftovers)

    def final_state(self, survivors: Sequence[int], *, standby_ended: bool) -> State:
        if survivors:
            return State.STUCK
        is_decided = self.reason is not None and self.reason.kind is ReasonKind.DECIDED
        if is_decided and not self.user_stopped:
            return State.SUCCEEDED
        succeeded = standby_ended or self._launcher.exit_status == (0, None)
        if succeeded and self.failed_at is None:
            return State.SUCCEEDED
        return State.STOPPED if self.reason and self.failed_at is None else State.FAILED

    @property
    def own_reason(self) -> Optional[Reason]:
        """The reason, where the supervisor itself had it and nothing of the task failed."""
        is_own = self.reason is not None and self.reason.is_own(self._order.node)
        return self.reason if is_own and self.failed_at is None else None
