"""Launch in a job of Slurm: what Slurm says to it by signals, and the job's next start."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.history.files import RecordFiles
from runner.control.history.run_reader import read_plans
from runner.control.record.launch_record import JOB_FILE, RESULT_FILE
from runner.control.record.run_store import RunStore
from runner.control.rpc.session import Inbox
from runner.control.run.hosts import enqueue_signal
from runner.core.errors import SIGNAL_EXIT_BASE
from runner.core.launch_request import LaunchRequest
from runner.core.outcome.losses import past_attempt
from runner.core.outcome.verdict import Verdict
from runner.core.planning.slurm_job import ENDS, ERR_FILE, OUT_FILE, REQUEUED, SIZES_FILE
from runner.core.spec import SlurmSpec, Spec
from runner.core.wire.plan import Plan
from runner.core.wire.run_info import PastAttempt
from runner.core.wire.states import (
    LOST_CODE,
    STOPPED,
    Reason,
    ReasonKind,
)
from runner.transport.srun import ask, job_of

DISCONNECT_S = 180.0
"""How long ranks outlive the launch in their job, which may wait for its disk: where Slurm does not
find them, nobody else would end them.
"""

SAME_SIGNAL_S = 1.0  # Slurm sends TERM twice at the end of a job; a person does not do so as fast
URGENT_AFTER_S = 25.0
"""How long after Slurm's TERM what is left is killed here, so that the end can be recorded: its own
KILL comes 30 s after it, unless the site's KillWait is another."""


class OwnJob:
    """The job that this process is the batch script of."""

    def __init__(self, folder: Path, spec: Spec, inbox: Inbox) -> None:
        self._folder = folder
        self._begins_at = len((folder / ERR_FILE).read_text(errors="replace"))
        self._slurm: SlurmSpec = spec.cluster.slurm
        self._inbox = inbox
        self._is_by_user = False
        self._is_at_limit = False
        self._is_stopped = False  # since the job could not start again at its limit
        self._term_at = float("-inf")
        self._why = ""
        self._monitor: AttemptMonitor | None = None
        signal.signal(signal.SIGUSR1, lambda *_: self._note(signal.SIGUSR1))

    def watch(self, monitor: AttemptMonitor) -> None:
        self._monitor = monitor
        monitor.on_interrupt = functools.partial(self._on_signal, monitor)

    def _note(self, signum: int) -> None:
        """Pass on a signal, or that it is time for what one does, if an attempt is on."""
        if self._monitor and not self._monitor.is_over:
            enqueue_signal(self._inbox, signum)

    def _on_signal(self, monitor: AttemptMonitor, signum: int) -> bool:
        """Do what Slurm asks for; return whether the signal ends the attempt as a user's does."""
        if signum == signal.SIGUSR1:
            self._is_at_limit = True
            monitor.signal_ranks(signal.Signals[self._slurm.signal])
            if self._slurm.requeue and self._slurm.signal_before:
                self._later(self._slurm.signal_before / 2, signal.SIGALRM)
            return False
        if signum == signal.SIGALRM:
            self._is_stopped = True
            monitor.stop_all(Reason(ReasonKind.TIME_LIMIT))
            return False
        if signum != signal.SIGTERM:
            return True
        is_repeated = time.monotonic() - self._term_at < SAME_SIGNAL_S
        self._term_at = time.monotonic()
        if is_repeated:
            return False
        self._why = self._why_ended()
        if self._why:
            self._later(URGENT_AFTER_S, signal.SIGINT)
            return True
        self._is_by_user = True
        # By scancel --batch, as `stop` does.
        monitor.stop_all(Reason(ReasonKind.USER, detail="stop requested"))
        return False

    def _later(self, seconds: float, signum: int) -> None:
        timer = threading.Timer(seconds, self._note, (signum,))
        timer.daemon = True
        timer.start()

    def explain(self, plan: Plan, verdict: Verdict) -> Verdict:
        """Return a verdict with why Slurm ended the attempt, if it did."""
        first = verdict.first_failure
        by_host = first is not None and first.kind is ReasonKind.TERM
        if by_host and not self._why:
            self._why = self._why_ended()
        exited = verdict.ranks.get(str(first.rank)) if first else None
        by_rank = exited is not None and exited.signal == signal.SIGTERM
        is_by_slurm = first is None or by_host or by_rank
        if self._is_by_user or not is_by_slurm or not (self._why or self._is_stopped):
            return verdict
        failure = Reason(ReasonKind.TIME_LIMIT, plan.nodes[0].node)
        if self._why:
            failure = Reason(ReasonKind.SCHEDULER, plan.nodes[0].node, detail=self._why)
        return replace(verdict, state=STOPPED, exit_code=1, first_failure=failure, stop_reason="")

    def _why_ended(self) -> str:
        words = (self._folder / ERR_FILE).read_text(errors="replace")
        return job_of(self._slurm.job_id).why_ended(words[self._begins_at :])

    def finish(self, verdict: Verdict, attempt: int) -> None:
        """Have Slurm start the job again where it would not by itself; then this is no end."""
        with contextlib.suppress(OSError):
            sizes = {name: (self._folder / name).stat().st_size for name in (OUT_FILE, ERR_FILE)}
            RunStore(self._folder).write_json(SIZES_FILE, sizes)
        is_by_user = verdict.exit_code > SIGNAL_EXIT_BASE
        is_taken = self._why in (ENDS["PREEMPTED"], REQUEUED)
        wants_again = self._is_at_limit or verdict.exit_code == LOST_CODE or is_taken
        if self._slurm.requeue and wants_again and not is_by_user:
            (self._folder / RESULT_FILE).rename(self._folder / f"result.{attempt}.json")
            if self._why != REQUEUED:
                ask(["scontrol", "requeue", self._slurm.job_id])


def is_own_job(folder: Path, spec: Spec) -> bool:
    is_inside = bool(spec.slurm and spec.slurm.job_id) and "SLURMD_NODENAME" in os.environ
    return is_inside and (folder / JOB_FILE).exists()


def with_lease(request: LaunchRequest) -> LaunchRequest:
    """Return the request of a launch whose ranks do not outlive it for long, unless it says so."""
    limit_s = request.spec.disconnect_s or DISCONNECT_S
    return replace(request, spec=replace(request.spec, disconnect_s=limit_s), on_record=True)


def past_attempts(folder: Path) -> tuple[PastAttempt, ...]:
    """Return the attempts on record; one without an end was that of a job that Slurm ended."""
    files = RecordFiles(folder)
    past: tuple[PastAttempt, ...] = ()
    for plan in read_plans(files):
        if verdict := files.decoded(Verdict, f"result.{plan.attempt}.json"):
            past = (*verdict.past_attempts, past_attempt(plan, verdict))
        else:
            nodes = tuple(share.node for share in plan.nodes)
            reason = Reason(ReasonKind.SCHEDULER, detail="its launch could not record why")
            past = (*past, PastAttempt(plan.attempt, nodes, reason))
    return past
