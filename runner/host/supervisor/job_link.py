"""Job link of a supervisor: what Slurm, and agents on another host, have it do about its job."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Optional

from runner.core.protocol.events import ENDED_BY_SCHEDULER, LIMIT_REASON, RanksSignalled, StopCause
from runner.host.process import procfs
from runner.host.process.event_loop import EventLoop
from runner.host.process.file_worker import Submit
from runner.host.ranks.tracker import RankTracker
from runner.host.storage.run_folder import EventLog
from runner.host.supervisor.attempt import Scheduled
from runner.host.supervisor.command_file import CommandFile
from runner.host.supervisor.peer_exchange import PeerExchange
from runner.host.supervisor.stop_ladder import StopLadder

RECORD_S = 3.0  # before a scheduler's KILL, in which the end is proven and recorded
END_S = 10.0  # before a time limit, in which a job ends and asks to start again
OWN_TERM_S = 2.0  # how much later than on another host we may get a scheduler's TERM
TERM_SPREAD_S = 0.5  # how much earlier a rank may have got a scheduler's TERM than we


class JobLink:
    """Does nothing for a run without a scheduler."""

    def __init__(
        self,
        scheduled: Optional[Scheduled],
        submit: Submit,
        on_command: Callable[[Dict[str, Any]], object],
        journal: EventLog,
        stop: Callable[[str, StopCause], None],
    ) -> None:
        self._scheduled, self._journal, self._stop = scheduled, journal, stop
        self._commands = scheduled and CommandFile(
            scheduled.commands, submit, on_command, scheduled.offset
        )
        self._limit_at = scheduled.limit_at if scheduled else float("inf")
        self._term_taken, self._peers_term_at = False, float("inf")

    @property
    def next_scheduled(self) -> Optional[Scheduled]:
        """What another attempt here begins with: it takes the commands that are left."""
        if self._scheduled is None or self._commands is None:
            return None
        return self._scheduled._replace(offset=self._commands.offset, limit_at=self._limit_at)

    def tick(self, ladder: StopLadder) -> None:
        """Take new commands; end before the job reaches its time limit, if that is set.

        A job that has reached it does not start again: a grace ends before, however long it is.
        """
        if self._commands is not None:
            self._commands.poll()
        now = time.monotonic()
        if now >= self._limit_at:
            self._stop(LIMIT_REASON, StopCause.LOCAL)
        if self._scheduled is not None and (left_s := self._scheduled.stop_after_s):
            ladder.shorten_grace(self._limit_at + left_s - min(END_S, left_s / 2))
        if now >= self._peers_term_at + OWN_TERM_S:
            self._stop(ENDED_BY_SCHEDULER, StopCause.PEER)

    def awaits_term(self, reason: str) -> bool:
        """Return whether a peer's word that Slurm ends the job waits for our own TERM, a moment."""
        if self._scheduled is None or reason != ENDED_BY_SCHEDULER or self._term_taken:
            return False
        now = time.monotonic()
        self._peers_term_at = min(self._peers_term_at, now)
        return now < self._peers_term_at + OWN_TERM_S

    def signal_ranks(self, ranks: RankTracker, ladder: StopLadder) -> None:
        """Have the ranks know that their job is about to reach its time limit.

        Only they get the signal: torchrun's handler would end the attempt.
        """
        scheduled = self._scheduled
        if scheduled is None or not scheduled.limit_signal:
            return
        if scheduled.stop_after_s is not None:
            self._limit_at = time.monotonic() + scheduled.stop_after_s
        if ladder.is_stopping:
            return
        reached = procfs.signal_all(ranks.running_pids, scheduled.limit_signal)
        self._journal.append(RanksSignalled(scheduled.limit_signal, len(reached)))

    def take_term(self, loop: EventLoop, ladder: StopLadder, peers: PeerExchange) -> bool:
        """Return whether the scheduler has sent TERM, and follow it the first time.

        It sends KILL later; what is left then is killed a moment earlier, so that the end can be
        proven and recorded. A longer grace counts where nothing stopped before: a preemption may
        give more time.
        """
        if self._scheduled is None or not loop.term_received:
            return False
        if not self._term_taken:
            self._term_taken = True
            peers.stop(ENDED_BY_SCHEDULER, StopCause.PEER)
            scheduled, now = self._scheduled, time.monotonic()
            since = now - TERM_SPREAD_S if scheduled.signals_all else now
            kill_after_s = scheduled.kill_wait_s - min(RECORD_S, scheduled.kill_wait_s / 2)
            grace_s = ladder.longest_grace_s
            if grace_s > scheduled.kill_wait_s and ladder.stopped_at > since:
                kill_after_s = grace_s
            ladder.follow_scheduler(since, kill_after_s, needs_term=not scheduled.signals_all)
        return True
