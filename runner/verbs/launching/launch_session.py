"""Launch of a run, from the composed configuration to the exit code."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from runner.checks.base import CheckContext, evaluate_checks
from runner.config.words import hydra_value
from runner.control.assumed_facts import assumed_facts
from runner.control.attempt.monitor import AttemptMonitor
from runner.control.attempt.node_monitor import OrderSender
from runner.control.code.pool import STORE, CodePool
from runner.control.code.source import (
    CodeKeeper,
    CodeSource,
    code_of,
    open_code_source,
    shipped_tasks,
)
from runner.control.record import run_index
from runner.control.record.run_store import RunStore
from runner.control.record.said_notes import unsaid
from runner.control.run.attempts import (
    Attempts,
    PlannedAttempt,
    launch_notes,
    without_pulls,
)
from runner.control.run.discovery import RunFinder
from runner.control.run.found_run import FoundRun
from runner.control.run.hosts import (
    FLUSH_TIMEOUT_S,
    HostPool,
    deadline,
    open_host_pool,
    signal_pending,
)
from runner.control.run.job_run import JobRun, submit
from runner.control.run.notifier import LaunchNotifier
from runner.control.run.own_job import OwnJob, is_own_job, past_attempts, with_lease
from runner.control.run.reporters import AttemptReporter
from runner.core.errors import Interrupted, NotReady, StopUnverified
from runner.core.launch_request import LaunchRequest
from runner.core.outcome.verdict import Verdict, fold_events
from runner.core.planning.build_plan import build_plan
from runner.core.planning.slurm_job import batch_script
from runner.core.remote_run import user_at_host
from runner.core.shell import this_program
from runner.core.spec import Spec
from runner.core.wire.codec import encode
from runner.core.wire.facts import Facts
from runner.core.wire.files import OUTPUT
from runner.core.wire.plan import run_info
from runner.core.wire.states import STOPPED
from runner.core.wire.text import format_ranges
from runner.ui.console.console import open_console
from runner.ui.output import note, reporting_faults, show, tell
from runner.ui.problems import find_errors, warning_lines
from runner.ui.reports import report, tables
from runner.verbs.shared.following import Ending, follow


def run(request: LaunchRequest, source: CodeSource | None = None) -> int:
    """Launch a run, or show its plan; return the exit code, or raise if nothing was started.

    `source` is the code it is to run, by default that of now.
    """
    source = source or open_code_source(request)
    if request.spec.slurm and not request.spec.slurm.job_id:
        return _submit(request, source)
    if request.spec.dry_run:
        _dry_run(request, source)
        return 0
    store = RunStore(request.run_dir)
    is_submitted = is_own_job(request.run_dir, request.spec)
    if is_submitted:
        request = with_lease(request)
    else:
        store.require_free()
    try:
        with _open_pool(request) as pool:
            job = OwnJob(request.run_dir, request.spec, pool.inbox) if is_submitted else None
            session = LaunchSession(request, source, store, pool, job)
            with reporting_faults(store.folder, lambda: session.fault_hint):
                return session.run()
    finally:
        store.unlock()


def _submit(request: LaunchRequest, source: CodeSource) -> int:
    """Submit the job of a run and follow it, or show its script; return the exit code."""
    spec = request.spec
    folder = str(request.run_dir)
    words = [sys.executable, "-m", "runner", f"rerun={hydra_value(folder)}"]
    words += [f"run_id={spec.run_id}", f"run_dir={hydra_value(folder)}", "detach=false"]
    script = batch_script(spec, spec.cluster.slurm, folder, str(Path.cwd()), words)
    if spec.dry_run:
        show(json.dumps({"script": script}) if "json" in spec.dry_run else script)
        return 0
    for text in launch_notes(request, source):
        note(text)
    try:
        run = JobRun(request, submit(request, source, RunStore(request.run_dir), script), tell)
    except NotReady:  # nothing was submitted
        shutil.rmtree(request.run_dir, ignore_errors=True)
        raise
    attach = f"{this_program()} attach --run {spec.run_id}"
    run.say(f"run {spec.run_id}: submitted as job {run.job_id}")
    if spec.detach:
        run.say(f"  {attach}")
        return 0
    run.say(f"  Ctrl-C ends it, closing the terminal does not: {attach}")
    return run.follow(is_guest=False)


def _open_pool(request: LaunchRequest) -> AbstractContextManager[HostPool]:
    spec = request.spec
    if spec.min_nodes:
        spec = replace(spec, max_nodes=len(spec.nodes))
    if not spec.relaunch.max:
        spec = replace(spec, spares=())
    names = [node.name for node in (*spec.nodes, *spec.spares)]
    return open_host_pool(spec, open_console(spec.ui, spec.console_ranks, names))


def _dry_run(request: LaunchRequest, source: CodeSource) -> None:
    """Print the commands of each host, or the plan as JSON; start nothing."""
    assumptions: list[str] = []
    request = without_pulls(request)
    if "offline" in request.spec.dry_run:
        spec, facts, assumptions = assumed_facts(request.spec)
        for text in launch_notes(request, source):
            note(text)
        plan = build_plan(spec, facts, code=code_of(request, source))
        plan = replace(plan, rendezvous_reason="assumed")
    else:
        with _open_pool(request) as pool:
            plan = Attempts(request, source, pool, launch_warnings).plan()
    if "json" in request.spec.dry_run:
        show(json.dumps(encode(plan)))
    else:
        show(report.render_dry_run(plan, assumptions))


def launch_warnings(spec: Spec, facts: Mapping[str, Facts]) -> list[str]:
    findings = evaluate_checks(CheckContext(spec, facts), spec.skip_checks, at_launch=True)
    if problems := [finding.as_problem for finding in find_errors(findings)]:
        raise NotReady(problems)
    return warning_lines(findings)


class LaunchSession:
    def __init__(
        self,
        request: LaunchRequest,
        source: CodeSource,
        store: RunStore,
        pool: HostPool,
        job: OwnJob | None = None,
    ) -> None:
        self._request = request
        self._source = source
        self._store = store
        self._pool = pool
        self._console = pool.console
        self._job = job
        starts = past_attempts(store.folder) if job else ()
        self._attempts = Attempts(request, source, pool, launch_warnings, starts)
        self._keeper: CodeKeeper | None = None
        self._monitor: AttemptMonitor | None = None  # once orders are sent

    def run(self) -> int:
        """Return the exit code; a `RunnerError` means that nothing was started."""
        here = str(Path.cwd())  # which may be removed before the first attempt
        attempt = self._attempts.first()
        self._started_at = time.monotonic()
        self._request = replace(self._request, launched_at=time.time(), launched_from=here)
        with self._store.required():
            found = self._store.create(self._request, attempt.plan)
        self._request = replace(self._request, on_record=found)
        self._flags = self._request.run_flags(self._request.spec.run_id)
        self._ending = Ending(self._pool, self._store, self._flags)
        if self._source.code.release:
            pool = CodePool(Path(here, run_index.RUNS_FOLDER, STORE))
            self._keeper = CodeKeeper(pool, self._source)
        monitor, verdict = self._run_attempt(attempt)
        is_complete = True
        try:
            while upcoming := self._attempts.next(monitor, verdict):
                attempt = upcoming
                with self._store.required():
                    self._store.write_plan(attempt.plan, self._request)
                monitor, verdict = self._run_attempt(attempt)
        except NotReady as error:
            self._console.message(f"not relaunching:\n{error}")
        except Interrupted as error:
            verdict = replace(verdict, state=STOPPED, exit_code=error.exit_code)
            is_complete = False
        if monitor.detached or monitor.peer_status.next_attempt_number:
            self._finish_keeping()
            is_left = monitor.detached or monitor.interrupted
            return self._leave(monitor) if is_left else self._follow_hosts(monitor)
        return self._end(monitor, verdict, is_complete=is_complete and not monitor.interrupted)

    def _end(self, monitor: AttemptMonitor, verdict: Verdict, *, is_complete: bool) -> int:
        plan = monitor.plan  # with the nodes that joined
        seconds = time.monotonic() - self._started_at
        verdict = replace(verdict, seconds=seconds, past_attempts=self._attempts.past)
        launched_at = self._request.launched_at
        diagnosis = self._ending.conclude(plan, verdict, monitor, launched_at=launched_at)
        notifier = LaunchNotifier(self._store, self._console.message)
        cwd = self._request.launched_from
        notifier.tell_end(self._pool.spec, monitor, verdict, diagnosis, self._flags, cwd)
        self._finish_keeping()
        pulls_outputs = plan.outputs and self._pool.spec.pull_outputs == "auto"
        kinds = (OUTPUT,) if pulls_outputs and is_complete and verdict.has_begun else ()
        self._ending.fetch(plan, monitor, kinds)
        notifier.finish(self._signal_pending)
        is_over = deadline(FLUSH_TIMEOUT_S) if verdict.exit_code else self._signal_pending
        self._console.close(is_over)
        if self._job:
            self._job.finish(verdict, plan.attempt)
        return verdict.exit_code

    @property
    def fault_hint(self) -> str:
        """What becomes of the run if this process ends now, and how to follow it."""
        if self._monitor is None:
            return "nothing was started"
        if self._monitor.is_over:
            command = f"{this_program()} attach {self._flags}"
            return f"its attempt had ended; to complete the record: {command}"
        is_detached = self._monitor.peer_status.all_detached
        return report.detach_notice(self._monitor.plan, self._flags, is_detached=is_detached)

    def _signal_pending(self) -> bool:
        return signal_pending(self._pool.inbox)

    def _finish_keeping(self) -> None:
        if not self._keeper:
            return
        self._console.phase("keeping the code")
        if problem := self._keeper.finish(self._signal_pending):
            message = f"the code of this run is not kept here: {problem}"
            self._console.message(f"note: {message}; rerun needs hosts that have it still")

    def _run_attempt(self, attempt: PlannedAttempt) -> tuple[AttemptMonitor, Verdict]:
        plan = attempt.plan
        spec = self._pool.spec
        started_at = time.monotonic()
        self._console.message(report.run_header(plan))
        ranks = () if plan.torch_assigns_ranks else spec.console_ranks or ()
        if absent := sorted(rank for rank in ranks if rank >= plan.world_size):
            self._console.message(f"note: console_ranks: the run has no {format_ranges(absent)}")
        if not (plan.attempt or spec.detach or self._job):
            self._console.message(report.outliving_line(plan, self._flags))
        notes: Sequence[str] = plan.notes
        if spec.debug.rank is None:  # how to attach to that rank is said each time
            notes = unsaid(f"plan on {plan.cluster}", notes)
        for text in notes:
            self._console.message(f"note: {text}")
        reporter = AttemptReporter(plan, self._console, self._store, tables.render_stacks)
        monitor = self._pool.monitor(plan, reporter.record, reporter.log)
        self._monitor = monitor
        if self._job:
            self._job.watch(monitor)
        tasks = shipped_tasks() if spec.task.shipped_file else None
        info = run_info(plan, user_at_host(), self._request.launched_at, self._attempts.past)
        config = self._request.config_yaml
        record = json.dumps({"info": encode(info), "plan": encode(plan), "config": config})
        packed = zlib.compress(record.encode())  # what every host has on record of the whole run
        monitor.start(
            attempt.facts,
            OrderSender(spec, plan, tasks, packed, self._attempts.facts_request),
            relaunch_follows=self._attempts.relaunches_left > 0,
        )
        monitor.run(detach=spec.detach)
        verdict = fold_events(monitor.plan, monitor.timed_events, time.monotonic() - started_at)
        if monitor.order_refused and verdict.exit_code < NotReady.exit_code:
            verdict = replace(verdict, exit_code=NotReady.exit_code)
        if self._job:
            verdict = self._job.explain(plan, verdict)
        return monitor, verdict

    def _follow_hosts(self, monitor: AttemptMonitor) -> int:
        """Follow the attempt that the hosts have begun by themselves, and those after it."""
        self._store.unlock()
        spec = self._pool.spec
        self._pool.retarget(replace(spec, nodes=(*spec.nodes, *spec.spares), spares=()))
        try:
            found = FoundRun(self._request, RunFinder(self._pool, self._request.selector))
            if found.plan.attempt == monitor.plan.attempt:
                found.switch_to_next_attempt(monitor)
            return follow(found)
        except (Interrupted, NotReady) as error:
            self._console.message(str(error))
            self._ending.leave(monitor.plan, monitor)
            return error.exit_code

    def _leave(self, monitor: AttemptMonitor) -> int:
        if monitor.hung_up:  # no one can read it
            return 128 + signal.SIGHUP
        if not monitor.interrupted:
            self._ending.leave(monitor.plan, monitor)
            return 0
        self._console.flush_ranks(FLUSH_TIMEOUT_S)
        told = "the hosts had relaunched it before they received the stop"
        stop = f"{this_program()} stop {self._flags}"
        self._console.verdict(f"run {monitor.plan.run_id}: {told}\n  {stop}")
        return StopUnverified.exit_code
