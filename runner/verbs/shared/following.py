"""Following of a run from anywhere as its launch would show it, and the report of its end."""

from __future__ import annotations

import functools
import signal
import time

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.run.found_run import FoundRun
from runner.control.run.hosts import enqueue_signal
from runner.control.run.reporters import AttemptReporter
from runner.core.protocol.remote_files import LOG, OUTPUT
from runner.core.shell import this_program
from runner.ui.reports import report, tables
from runner.ui.reports.internal_fault import reporting_faults
from runner.verbs.shared.reporting import Ending


def follow(run: FoundRun, tail: int | None = None, *, is_guest: bool = False) -> int:
    """Show a run to its end, from the last `tail` lines of each rank on; return the exit code.

    A signal stops the run; that of a guest leaves it.
    """
    hint = f"this ends no run; to go on: {this_program()} attach {run.flags}"
    with reporting_faults(run.store.folder, lambda: hint):
        return _follow(run, tail, is_guest=is_guest)


def _follow(run: FoundRun, tail: int | None, *, is_guest: bool) -> int:
    ending = Ending(run.console, run.finder.pool, run.store, run.flags)
    first = run.plan.attempt
    monitor = run.follow(
        lambda: _follow_attempt(run, tail if run.plan.attempt == first else None, is_guest=is_guest)
    )
    if monitor.hung_up or run.console.reader_gone:  # no one can read a report
        return 128 + (signal.SIGHUP if monitor.hung_up else signal.SIGPIPE)
    if monitor.detached:
        ending.leave(run.plan, monitor, is_stopping=monitor.is_stopping)
        return 0
    verdict = run.verdict(monitor)
    kinds: list[str] = []
    if run.owns_record and verdict.has_begun and not monitor.interrupted:
        kinds += [LOG] if tail is not None else []  # what precedes the tail
        kinds += [OUTPUT] if run.plan.outputs and run.spec.pull_outputs == "auto" else []
    has_result = run.already_ended and run.store.has_result
    writes_result = run.owns_record and not has_result and not run.outcome_unknown
    launched_at = run.record.info.launched_at if writes_result else None
    ending.conclude(run.plan, verdict, monitor, launched_at=launched_at, needs_logs=LOG in kinds)
    if run.already_ended and is_guest:
        run.console.message(report.ended_notice(run.flags))
    ending.fetch(run.plan, monitor, kinds)
    return verdict.exit_code


def _follow_attempt(run: FoundRun, tail: int | None, *, is_guest: bool) -> AttemptMonitor:
    """Show one attempt to its end."""
    run.owns_record = run.store.reopen(run.request, run.plan)
    inbox = run.finder.pool.inbox
    run.console.message(report.run_header(run.plan))
    for share in () if run.already_ended else run.plan.nodes:
        if problem := run.finder.unreachable.get(share.node):
            run.console.message(f"{share.node}: {problem.message}; it is tried again")
    reporter = AttemptReporter(
        run.plan,
        run.console,
        run.store if run.owns_record else None,
        tables.render_stacks,
        report_stalls=not run.already_ended,
        on_reader_gone=lambda: enqueue_signal(inbox, signal.SIGPIPE),
    )
    monitor = run.finder.pool.monitor(run.plan, reporter.record, reporter.log)
    run.show_participants()
    if is_guest:
        monitor.on_interrupt = functools.partial(_leave, monitor)
    age_s = max(0.0, time.time() - run.record.info.launched_at)
    start_at = {} if tail is None else {"tail": tail}
    monitor.attach(start_at=start_at, read_only=run.already_ended, age_s=age_s)
    monitor.run()
    if not monitor.detached:
        run.console.reset_lines()
    return monitor


def _leave(monitor: AttemptMonitor, signum: int) -> bool:
    """Leave a run to its hosts; return whether the monitor is to take the signal as a launch."""
    if signum == signal.SIGHUP:
        return True
    if signum == signal.SIGPIPE:  # such as `| head`
        monitor.leave()
    else:
        monitor.detach()
    return False
