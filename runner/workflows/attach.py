"""Attach: follow a run from anywhere as its launch would show it, and report its end."""

from __future__ import annotations

import contextlib
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.record import run_index
from runner.control.rpc.session import Inbox
from runner.core.model.run_info import RunInfo
from runner.core.model.spec import LaunchRequest
from runner.core.protocol.frames import Frame
from runner.core.protocol.remote_files import LOG, OUTPUT
from runner.core.shell import this_program
from runner.core.text import printable
from runner.ui.console.console import Console
from runner.ui.reports import report
from runner.ui.reports.internal_fault import reporting_faults
from runner.ui.reports.run_table import describe_run
from runner.workflows.host_pool import enqueue_signal
from runner.workflows.reporting import AttemptReporter, Ending
from runner.workflows.runs.discovery import RunFinder
from runner.workflows.runs.found_run import FoundRun
from runner.workflows.slurm.queue import QueuedJob

ANSWER_TIMEOUT_S = 30
ANSWERS = {"": "detach", "d": "detach", "detach": "detach", "s": "stop", "stop": "stop"}
DETACH_QUESTION = (
    f"Type d and Enter to detach (also after {ANSWER_TIMEOUT_S} s), or s and Enter to stop the run"
)
COUNTDOWN = "d or s? detaching"


def await_start(request: LaunchRequest, finder: RunFinder) -> None:
    """Return once a run has begun: at once, unless its job waits for nodes.

    Raises:
        NotReady: It never will, or there is no such run.
    """
    run = finder.find(request.spec.run_id)
    if run.has_not_begun and run.is_active:
        node = next(iter(finder.pool.sessions))
        flags = request.run_flags(run.run_id)
        QueuedJob(finder.pool, node, run.run_id, flags).await_start(cancels=False)


def attach(run: FoundRun, tail: int | None) -> int:
    """Show a run to its end, from the last `tail` lines of each rank on; return the exit code."""
    return follow(run, tail, asks=True)


def follow(run: FoundRun, tail: int | None = None, *, asks: bool = False) -> int:
    """Show a run to its end; with `asks`, a signal is a question, else it stops the run."""
    hint = f"this ends no run; to go on: {this_program()} attach {run.flags}"
    with reporting_faults(run.store.folder, lambda: hint):
        return _follow(run, tail, asks=asks)


def _follow(run: FoundRun, tail: int | None, *, asks: bool) -> int:
    ending = Ending(run.console, run.finder.pool, run.store, run.flags)
    start_at: dict[str, float] = {} if tail is None else {"tail": tail}
    while True:
        owns_record = run.store.reopen(run.request, run.plan)
        monitor = _follow_attempt(run, start_at, owns_record=owns_record, asks=asks)
        if monitor.hung_up or run.console.reader_gone:  # no one can read a report
            return 128 + (signal.SIGHUP if monitor.hung_up else signal.SIGPIPE)
        if monitor.detached:
            ending.leave(run.plan, monitor, is_stopping=monitor.is_stopping)
            return 0
        run.console.reset_lines()
        if not run.switch_to_next_attempt(monitor):
            break
        start_at = {}
        run.store.unlock()
    verdict = run.verdict(monitor)
    kinds: list[str] = []
    if owns_record and verdict.has_begun and not monitor.interrupted:
        kinds += [LOG] if tail is not None else []  # what precedes the tail
        kinds += [OUTPUT] if run.plan.outputs and run.spec.pull_outputs else []
    has_result = run.already_ended and run.store.has_result
    writes_result = owns_record and not has_result and not run.outcome_unknown
    launched_at = run.record.info.launched_at if writes_result else None
    ending.conclude(run.plan, verdict, monitor, launched_at=launched_at, needs_logs=LOG in kinds)
    if run.already_ended and asks:
        run.console.message(report.ended_notice(run.flags))
    ending.fetch(run.plan, monitor, kinds)
    return verdict.exit_code


def _follow_attempt(
    run: FoundRun, start_at: Mapping[str, float], *, owns_record: bool, asks: bool
) -> AttemptMonitor:
    """Show one attempt to its end."""
    inbox = run.finder.pool.inbox
    run.console.message(report.run_header(run.plan))
    for share in () if run.already_ended else run.plan.nodes:
        if problem := run.finder.unreachable.get(share.node):
            run.console.message(f"{share.node}: {problem.message}; it is tried again")
    reporter = AttemptReporter(
        run.plan,
        run.console,
        run.store if owns_record else None,
        report_stalls=not run.already_ended,
        on_reader_gone=lambda: enqueue_signal(inbox, signal.SIGPIPE),
    )
    monitor = run.finder.pool.monitor(run.plan, reporter.record, reporter.log)
    run.show_participants()
    if asks:
        monitor.on_interrupt = DetachPrompt(monitor, inbox, run.console, run.record.info)
    age_s = max(0.0, time.time() - run.record.info.launched_at)
    monitor.attach(start_at=start_at, read_only=run.already_ended, age_s=age_s)
    monitor.run()
    return monitor


class DetachPrompt:
    """Ctrl-C while attached: on a terminal, the user is asked whether to detach or stop.

    The question names the run, which may be another user's.
    """

    def __init__(
        self,
        monitor: AttemptMonitor,
        inbox: Inbox,
        console: Console,
        run: RunInfo,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monitor, self._inbox, self._console = monitor, inbox, console
        self._run, self._clock = run, clock
        self._has_asked = self._stop_requested = False

    def __call__(self, signum: int) -> bool:
        """Return whether the monitor is to take the signal as a launch does."""
        if signum == signal.SIGHUP or self._stop_requested:
            return True
        if signum == signal.SIGPIPE:  # such as `| head`
            self._monitor.leave()
            return False
        can_ask = sys.stdin is not None and sys.stdin.isatty()
        if signum == signal.SIGTERM or self._has_asked or not can_ask:
            self._monitor.detach()
            return False
        self._has_asked = True
        self._console.message(describe_run(self._run, run_index.other_folder(self._run)))
        self._console.message(DETACH_QUESTION)
        threading.Thread(target=self._ask, daemon=True, name="question").start()
        return False

    def _ask(self) -> None:
        """Ask until there is an answer, with a countdown that stays visible while ranks print."""
        self._console.phase(COUNTDOWN, -ANSWER_TIMEOUT_S)
        command, deadline = "", self._clock() + ANSWER_TIMEOUT_S
        while not command:
            remaining_s = deadline - self._clock()
            command = self._read_answer() if _is_typed(remaining_s) else "detach"
        self._stop_requested = command == "stop"
        self._inbox.put((None, Frame("prompt_answer", {"command": command})))

    def _read_answer(self) -> str:
        """Return the command that a line stands for, "" if it has to be asked again."""
        line = ""
        with contextlib.suppress(OSError, ValueError):
            line = sys.stdin.readline()
        if not line:
            return "leave"
        answer = line.strip().lower()
        if answer in ANSWERS:
            return ANSWERS[answer]
        self._console.message(f"{printable(answer)} is neither d nor s. {DETACH_QUESTION}")
        return ""


def _is_typed(timeout_s: float) -> bool:
    """Wait for a line of standard input, or its end."""
    try:
        return bool(select.select([sys.stdin], [], [], max(0.0, timeout_s))[0])
    except (OSError, ValueError):
        return True
