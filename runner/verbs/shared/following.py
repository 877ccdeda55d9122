"""Following of a run from anywhere as its launch would show it, and the report of its end."""

from __future__ import annotations

import contextlib
import functools
import math
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.record.metrics_record import record_metrics
from runner.control.record.run_store import RunStore
from runner.control.run.download import pull
from runner.control.run.found_run import FoundRun
from runner.control.run.hosts import FLUSH_TIMEOUT_S, HostPool, enqueue_signal
from runner.control.run.reporters import AttemptReporter
from runner.core.errors import Interrupted, NotReady, fold_names
from runner.core.outcome.diagnosis import Diagnosis
from runner.core.outcome.verdict import Verdict
from runner.core.results import PullResult
from runner.core.shell import this_program
from runner.core.wire.files import LOG, OUTPUT, SAMPLES
from runner.core.wire.plan import Plan
from runner.ui.output import reporting_faults
from runner.ui.problems import render_problems
from runner.ui.reports import report, tables

LIMIT_S = 10.0
"""How long an end waits for samples, and for logs that a reader joined too late to see."""

PATIENCE_S = 3.0
OUTPUTS_PATIENCE_S = 10.0
"""A host that sends nothing for so long is not waited for; `pull` brings the rest."""


def follow(run: FoundRun, tail: int | None = None, *, is_guest: bool = False) -> int:
    """Show a run to its end, from the last `tail` lines of each rank on; return the exit code.

    A signal stops the run; that of a guest leaves it.
    """
    hint = f"this ends no run; to go on: {this_program()} attach {run.flags}"
    first = run.plan.attempt
    with reporting_faults(run.store.folder, lambda: hint):
        monitor = run.follow(
            lambda: _follow_attempt(run, tail if run.plan.attempt == first else None, is_guest)
        )
        if monitor.hung_up or run.console.reader_gone:  # no one can read a report
            return 128 + (signal.SIGHUP if monitor.hung_up else signal.SIGPIPE)
        ending = Ending(run.finder.pool, run.store, run.flags)
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
        ending.conclude(
            run.plan,
            verdict,
            monitor,
            launched_at=run.record.info.launched_at if writes_result else None,
            needs_logs=LOG in kinds,
        )
        if run.already_ended and is_guest:
            run.console.message(report.ended_notice(run.flags))
        ending.fetch(run.plan, monitor, kinds)
    return verdict.exit_code


def _follow_attempt(run: FoundRun, tail: int | None, is_guest: bool) -> AttemptMonitor:
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
    monitor.attach(tail=tail, read_only=run.already_ended, age_s=age_s)
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


@dataclass(frozen=True)
class Ending:
    """Where the end of a run is reported; a verb finds the run again by `run_flags`."""

    pool: HostPool
    store: RunStore
    run_flags: str

    def conclude(
        self,
        plan: Plan,
        verdict: Verdict,
        monitor: AttemptMonitor,
        *,
        launched_at: float | None,
        needs_logs: bool = False,
    ) -> Diagnosis | None:
        """Record the result if `launched_at` is given, and show the final report.

        With `needs_logs`, it waits a while for logs that are not here, to diagnose by.

        Returns the diagnosis of the first failure.
        """
        self.pool.console.flush_ranks(FLUSH_TIMEOUT_S)
        diagnosis = self.store.diagnose(plan, verdict)
        if launched_at is not None:
            self.store.write_result(plan, verdict, launched_at, diagnosis)
        if needs_logs:
            self.store.unlock()
            with contextlib.suppress(Interrupted, NotReady):
                self._download(plan, (LOG,), LIMIT_S, PATIENCE_S)
            diagnosis = self.store.diagnose(plan, verdict)
        if failure := self.store.write_error:
            self.pool.console.message(f"{failure}; the hosts have every log, in their workdir")
        # Supervisors that were not reached wait that long for a controller.
        disconnect_s = 0 if monitor.peer_status.any_detached else self.pool.spec.disconnect_s
        text, colours = report.final_report(
            plan,
            verdict,
            self.store.display_path,
            diagnosis,
            run_flags=self.run_flags,
            disconnect_s=disconnect_s,
            rerun=self.store.rerun_without_lost(plan, verdict),
        )
        self.pool.console.verdict(text, colours)
        return diagnosis

    def fetch(self, plan: Plan, monitor: AttemptMonitor, kinds: Collection[str]) -> None:
        """Bring what the verdict did not need: these kinds, metrics and samples."""
        if problem := record_metrics(self.store.folder, plan.progress_pattern):
            self.pool.console.message(f"note: {problem}")
        self.store.unlock()
        if kinds and (told := self._fetched(plan, kinds)):
            self.pool.console.message(told)
        if any(node.order.sample_s for node in plan.nodes):
            limit_s = PATIENCE_S if monitor.interrupted else LIMIT_S
            with contextlib.suppress(Interrupted, NotReady):  # they stay on the hosts for `pull`
                self._download(plan, (SAMPLES,), limit_s, PATIENCE_S)

    def _download(
        self, plan: Plan, kinds: Collection[str], limit_s: float, patience_s: float
    ) -> dict[str, PullResult]:
        folder = self.store.folder
        return pull(self.pool, plan.run_id, folder, kinds, limit_s=limit_s, patience_s=patience_s)

    def _fetched(self, plan: Plan, kinds: Collection[str]) -> str:
        """Download; return a summary, in which problems are named, not raised."""
        pull_command = f"{this_program()} pull {self.run_flags}"
        try:
            pulled = self._download(plan, kinds, math.inf, OUTPUTS_PATIENCE_S)
        except Interrupted:
            return f"the rest of the outputs stays on the hosts: {pull_command}"
        except NotReady as error:
            return f"{render_problems(error.problems)}\n  {pull_command}"
        lines = []
        if OUTPUT in kinds or any(result.new_count for result in pulled.values()):
            outputs = plan.outputs if OUTPUT in kinds else ()
            lines.append(tables.render_pull(pulled, str(self.store.display_path), outputs))
        missing = [node.name for node in self.pool.spec.nodes if node.name not in pulled]
        if missing:
            names = fold_names(missing)
            lines.append(f"nothing fetched from {names}, out of reach: {pull_command}")
        if problems := tables.pull_problems(pulled):
            lines.append(render_problems(problems))
        return "\n".join(lines)

    def leave(self, plan: Plan, monitor: AttemptMonitor, *, is_stopping: bool = False) -> None:
        """Show how a run that goes on without this process can be found again."""
        self.pool.console.flush_ranks(FLUSH_TIMEOUT_S)
        text = report.detach_notice(
            plan,
            self.run_flags,
            is_detached=monitor.peer_status.all_detached,
            is_stopping=is_stopping,
            hub_unreachable=monitor.peer_status.hub_unreachable,
        )
        self.pool.console.verdict(text)
