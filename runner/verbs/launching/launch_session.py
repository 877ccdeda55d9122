"""Launch of a run, from the composed configuration to the exit code."""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from runner.control.assumed_facts import assumed_facts
from runner.control.attempt.admission import OrderSender
from runner.control.attempt.monitor import AttemptMonitor
from runner.control.attempt.stop import user_at_host
from runner.control.code.code_store import STORE, CodeKeeper, CodeStore
from runner.control.code.source import CodeSource, shipped_tasks
from runner.control.record import run_index
from runner.control.record.run_store import RunStore
from runner.control.record.said_notes import unsaid
from runner.control.rpc.session import BoundedInbox, Inbox
from runner.core.codec import encode
from runner.core.errors import (
    InternalFault,
    Interrupted,
    NotReady,
    Problem,
    RunnerError,
    StopUnverified,
)
from runner.core.launch_request import LaunchRequest
from runner.core.model.facts import Facts
from runner.core.model.plan import Plan
from runner.core.model.run_info import RunInfo
from runner.core.outcome.verdict import STOPPED, Verdict, fold_events
from runner.core.planning.build_plan import build_plan
from runner.core.protocol.events import Event
from runner.core.protocol.remote_files import OUTPUT
from runner.core.protocol.states import AttemptState
from runner.core.relaunch.handover import AttemptOrders, relaunch_context, run_info
from runner.core.relaunch.next_attempt import assign_voters
from runner.core.shell import this_program
from runner.core.text import format_ranges, join_some
from runner.ui.console.console import open_console
from runner.ui.layout import fold_names
from runner.ui.output import note, show
from runner.ui.reports import report
from runner.ui.reports.dry_run import render_dry_run
from runner.ui.reports.internal_fault import reporting_faults
from runner.ui.reports.report import render_access
from runner.verbs.launching.in_job import DISCONNECT_S, OwnJob, is_own_job, past_attempts
from runner.verbs.launching.launch_notifier import LaunchNotifier
from runner.verbs.launching.preparation import (
    Preparation,
    launch_notes,
    open_code_source,
    without_pulls,
)
from runner.verbs.launching.relaunch import Relauncher
from runner.verbs.shared.confirmation import ask
from runner.verbs.shared.discovery import RunFinder
from runner.verbs.shared.following import follow
from runner.verbs.shared.found_run import FoundRun
from runner.verbs.shared.host_pool import (
    FLUSH_TIMEOUT_S,
    HostPool,
    deadline,
    forward_signals,
    signal_pending,
)
from runner.verbs.shared.reporting import AttemptReporter, Ending


def run(request: LaunchRequest, source: CodeSource | None = None) -> int:
    """Launch a run, or show its plan; return the exit code, or raise if nothing was started.

    `source` is the code it is to run, by default that of now.
    """
    if request.spec.slurm and not request.spec.slurm.job_id:
        from runner.verbs.launching.submission import submit

        return submit(request, source)
    if request.spec.dry_run:
        dry_run(request)
        return 0
    source = source or open_code_source(request)
    store = RunStore(request.run_dir)
    inbox = BoundedInbox()
    job: OwnJob | None = None
    if is_own_job(request.run_dir, request.spec):
        job = OwnJob(request.run_dir, request.spec, inbox)
        limit_s = request.spec.disconnect_s or DISCONNECT_S
        spec = replace(request.spec, disconnect_s=limit_s)
        request = replace(request, spec=spec, on_record=True)
    else:
        store.reserve()
    try:
        with forward_signals(inbox):
            session = LaunchSession(request, source, store, inbox, job)
            with reporting_faults(store.folder, lambda: session.fault_hint):
                return session.run()
    except InternalFault:
        raise
    except RunnerError:
        store.discard()
        raise


def dry_run(request: LaunchRequest) -> None:
    """Print the commands of each host, or the plan as JSON; start nothing."""
    assumptions: list[str] = []
    request = without_pulls(request)
    if "offline" in request.spec.dry_run:
        spec, facts, assumptions = assumed_facts(request.spec, fold_names)
        source = open_code_source(request)
        for text in launch_notes(request, source):
            note(text)
        plan = build_plan(spec, facts, code=source.code, fold_names=fold_names)
        plan = replace(plan, rendezvous_reason="assumed")
    else:
        source = open_code_source(request)
        inbox = BoundedInbox()
        with forward_signals(inbox):
            plan = LaunchSession(request, source, RunStore(request.run_dir), inbox).plan()
    if "json" in request.spec.dry_run:
        show(json.dumps(encode(plan)))
    else:
        show(render_dry_run(plan, assumptions))


class LaunchSession:
    """One run, with its connections, its record and its console."""

    def __init__(
        self,
        request: LaunchRequest,
        source: CodeSource,
        store: RunStore,
        inbox: Inbox,
        job: OwnJob | None = None,
    ) -> None:
        self._request = request
        self._source = source
        self._store = store
        self._here = str(Path.cwd())  # which may be removed before the end
        self._job = job
        self._starts = past_attempts(store.folder) if job else ()  # of the job, before this one
        self._past_attempts = self._starts
        self._keeper: CodeKeeper | None = None
        self._monitor: AttemptMonitor | None = None  # once orders are sent
        self._notifier: LaunchNotifier | None = None  # likewise
        spec = request.spec
        if spec.min_nodes:
            spec = replace(spec, max_nodes=len(spec.nodes))
        spares = spec.spares if spec.relaunch.max else ()
        names = [node.name for node in (*spec.nodes, *spares)]
        self._console = open_console(request.spec.ui, request.spec.console_ranks, names)
        self._pool = HostPool(spec, self._console, inbox)
        self._preparation = Preparation(request, source, self._pool, again=bool(self._starts))

    def run(self) -> int:
        """Return the exit code; a `RunnerError` means that nothing was started."""
        try:
            facts = self._preparation.collect_facts()
            attempt = self._starts[-1].attempt + 1 if self._starts else 0
            return self._run_attempts(self._preparation.push_and_plan(facts, attempt), facts)
        finally:
            self._store.unlock()
            self._close()

    def plan(self) -> Plan:
        """Return the plan, and start nothing."""
        try:
            facts = self._preparation.collect_facts()
            self._preparation.check_code(facts)
            return self._preparation.plan(facts)
        finally:
            self._close()

    @property
    def fault_hint(self) -> str:
        """What becomes of the run if this process ends now, and how to follow it."""
        if self._monitor is None:
            return "nothing was started"
        plan, is_detached = self._monitor.plan, self._monitor.peer_status.all_detached
        flags = self._request.run_flags(plan.run_id)
        if self._monitor.state is AttemptState.ENDED:
            return f"its attempt had ended; to complete the record: {this_program()} attach {flags}"
        return report.detach_notice(plan, flags, is_detached=is_detached)

    def _close(self) -> None:
        self._console.close(deadline(FLUSH_TIMEOUT_S))
        self._pool.close()

    def _run_attempts(self, plan: Plan, facts: dict[str, Facts]) -> int:
        started_at = time.monotonic()
        here = self._here
        self._request = replace(self._request, launched_at=time.time(), launched_from=here)
        attempt = self._orders(plan, facts)
        with self._writing_record():
            found = self._store.create(self._request, attempt.plan)
        self._request = replace(self._request, on_record=found)
        self._keeper = self._source.keep(CodeStore(Path(here, run_index.RUNS_FOLDER, STORE)))
        relauncher = Relauncher(self._pool, self._preparation)
        notifier = self._notifier = LaunchNotifier(
            self._pool.spec, self._store, self._console.message, self._ending.run_flags, here
        )
        monitor, verdict = self._run_attempt(attempt, facts)
        cut_short = False
        try:
            while not monitor.detached and (
                upcoming := relauncher.next_attempt(facts, monitor, verdict)
            ):
                plan, facts = upcoming
                past = (*self._starts, *relauncher.past_attempts)
                if past != self._past_attempts:
                    notifier.relaunching(plan, past[-1].reason)
                self._past_attempts = past
                attempt = self._orders(plan, facts)
                with self._writing_record():
                    self._store.write_plan(attempt.plan)
                monitor, verdict = self._run_attempt(attempt, facts)
        except NotReady as error:
            self._console.message(f"not relaunching:\n{error}")
        except Interrupted as error:
            verdict = replace(verdict, state=STOPPED, exit_code=error.exit_code)
            cut_short = True
        goes_on = bool(monitor.peer_status.next_attempt_number)
        if monitor.detached or goes_on:
            self._finish_keeping()
            is_left = monitor.detached or monitor.interrupted
            return self._leave(monitor) if is_left else self._follow_hosts(monitor)
        plan = monitor.plan  # with the nodes that joined
        seconds = time.monotonic() - started_at
        verdict = replace(verdict, seconds=seconds, past_attempts=self._past_attempts)
        is_complete = not (monitor.interrupted or cut_short)
        wants_outputs = self._pool.spec.pull_outputs == "auto"
        pulls_outputs = is_complete and plan.outputs and wants_outputs
        kinds = (OUTPUT,) if pulls_outputs and verdict.has_begun else ()
        launched_at = self._request.launched_at
        diagnosis = self._ending.conclude(plan, verdict, monitor, launched_at=launched_at)
        notifier.ended(verdict, diagnosis)
        self._finish_keeping()
        self._ending.fetch(plan, monitor, kinds)
        inbox, too_late = self._pool.inbox, deadline(FLUSH_TIMEOUT_S)
        notifier.finish(lambda: signal_pending(inbox))
        self._console.close(too_late if verdict.exit_code else lambda: signal_pending(inbox))
        if self._job:
            self._job.finish(verdict, plan.attempt)
        return verdict.exit_code

    def _finish_keeping(self) -> None:
        if not self._keeper:
            return
        self._console.phase("keeping the code")
        if problem := self._keeper.finish(lambda: signal_pending(self._pool.inbox)):
            message = f"the code of this run is not kept here: {problem}"
            self._console.message(f"note: {message}; rerun needs hosts that have it still")

    @property
    def _ending(self) -> Ending:
        flags = self._request.run_flags(self._pool.spec.run_id)
        return Ending(self._console, self._pool, self._store, flags)

    @contextlib.contextmanager
    def _writing_record(self) -> Iterator[None]:
        """Report a disk that cannot be written to before anything starts that needs recording."""
        try:
            yield
        except OSError as error:
            message = f"cannot write in {self._store.folder}: {error.strerror}"
            problem = Problem("run_dir", message, "free some space, or set run_dir")
            raise NotReady([problem]) from error

    @property
    def _relaunches_left(self) -> int:
        return self._pool.spec.relaunch.max - len(self._past_attempts) + len(self._starts)

    def _orders(self, plan: Plan, facts: dict[str, Facts]) -> AttemptOrders:
        """Return the orders of an attempt, in which hosts are chosen that may relaunch."""
        return assign_voters(self._pool.spec, plan, facts, self._relaunches_left)

    def _run_attempt(
        self, attempt: AttemptOrders, facts: dict[str, Facts]
    ) -> tuple[AttemptMonitor, Verdict]:
        """Carry out a plan to its end."""
        plan = attempt.plan
        started_at = time.monotonic()
        if self._notifier:
            self._notifier.begin(plan)
        self._console.message(report.run_header(plan))
        ranks = () if plan.torch_assigns_ranks else self._request.spec.console_ranks or ()
        if absent := sorted(rank for rank in ranks if rank >= plan.world_size):
            self._console.message(f"note: console_ranks: the run has no {format_ranges(absent)}")
        if not (plan.attempt or self._pool.spec.detach or self._job):
            self._console.message(report.outliving_line(plan, self._ending.run_flags))
        is_passing = bool(self._pool.spec.debug_rank)  # how to attach to its rank
        for text in plan.notes if is_passing else unsaid(f"plan on {plan.cluster}", plan.notes):
            self._console.message(f"note: {text}")
        reporter = AttemptReporter(plan, self._console, self._store, on_event=self._on_event)
        self._monitor = monitor = self._pool.monitor(plan, reporter.record, reporter.log)
        if self._job:
            monitor.on_interrupt = functools.partial(self._job.on_signal, monitor)
        monitor.start(
            facts,
            self._order_sender(plan, attempt),
            self._packed_record(plan),
            self._preparation.admission_hooks(facts, plan.attempt, self._on_admitted),
            relaunch_follows=self._relaunches_left > 0,
        )
        monitor.run(detach=self._pool.spec.detach)
        verdict = fold_events(monitor.plan, monitor.timed_events, time.monotonic() - started_at)
        if monitor.order_refused and verdict.exit_code < NotReady.exit_code:
            verdict = replace(verdict, exit_code=NotReady.exit_code)
        if self._job:
            verdict = self._job.explain(plan, verdict)
        return monitor, verdict

    def _on_event(self, event: Event) -> None:
        if self._notifier:
            self._notifier.on_event(event)

    def _order_sender(self, plan: Plan, attempt: AttemptOrders) -> OrderSender:
        tasks = shipped_tasks() if self._pool.spec.task.shipped_file else None
        token = secrets.token_hex(16)
        if not attempt.voters:
            return OrderSender(self._pool.spec.secrets, token, tasks)
        info, config_yaml = self._run_info(plan), self._request.config_yaml
        context = relaunch_context(
            self._pool.spec, self._source.code, info, config_yaml, attempt.voters
        )
        return OrderSender(self._pool.spec.secrets, token, tasks, context, attempt.standby)

    def _on_admitted(self, plan: Plan) -> bytes:
        with contextlib.suppress(OSError):  # the plan on record stays
            self._store.write_plan(plan)
        return self._packed_record(plan)

    def _run_info(self, plan: Plan) -> RunInfo:
        launched_at = self._request.launched_at
        past = self._past_attempts
        left = self._relaunches_left
        return run_info(plan, user_at_host(), launched_at, past, left)

    def _packed_record(self, plan: Plan) -> bytes:
        """Return what every host is to have on record of the whole run, packed."""
        info = self._run_info(plan)
        record = {"info": encode(info), "plan": encode(plan), "config": self._request.config_yaml}
        return zlib.compress(json.dumps(record).encode())

    def _follow_hosts(self, monitor: AttemptMonitor) -> int:
        """Follow the attempt that the hosts have begun by themselves, and those after it."""
        self._store.unlock()
        spec = self._pool.spec
        self._pool.retarget(replace(spec, nodes=(*spec.nodes, *spec.spares), spares=()))
        try:
            finder = RunFinder(self._pool, self._request.selector, reuse_sessions=True)
            found = FoundRun(self._request, finder)
            if found.plan.attempt == monitor.plan.attempt:
                found.switch_to_next_attempt(monitor)
            return follow(found)
        except (Interrupted, NotReady) as error:
            self._console.message(str(error))
            self._ending.leave(monitor.plan, monitor)
            return error.exit_code

    def _leave(self, monitor: AttemptMonitor) -> int:
        """Show how the run can be found again; return the exit code."""
        if monitor.hung_up:  # no one can read it
            return 128 + signal.SIGHUP
        if not monitor.interrupted:
            self._ending.leave(monitor.plan, monitor)
            return 0
        self._console.flush_ranks(FLUSH_TIMEOUT_S)
        told = "the hosts had relaunched it before they received the stop"
        stop = f"{this_program()} stop {self._ending.run_flags}"
        self._console.verdict(f"run {monitor.plan.run_id}: {told}\n  {stop}")
        return StopUnverified.exit_code


def confirm_record(request: LaunchRequest) -> None:
    """Show what a launch would do by the record of hosts, and ask about it.

    Nothing is asked about a dry run that contacts no host.

    Raises:
        ConfigError: There is no terminal to ask on.
        Interrupted: The answer is no.
    """
    if "offline" in request.spec.dry_run:
        return
    dry_run(replace(request, spec=replace(request.spec, dry_run=("offline",))))
    show(render_access(request))
    hosts = join_some(request.record_hosts)
    action = f"launch this by the record that came from {hosts}, not from a launch here"
    details = "what it would run is shown above"
    ask(action, details, lambda text: show(text, file=sys.stderr), None)
