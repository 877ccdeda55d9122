"""A launch from the composed configuration to the exit code: what wires control and ui."""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace

from runner.checks.context import CheckContext
from runner.checks.registry import LAUNCH_CHECKS, evaluate_checks
from runner.control.assumed_facts import assumed_facts
from runner.control.attempt.admission import AdmissionHooks
from runner.control.attempt.monitor import AttemptMonitor
from runner.control.attempt.start import OrderSender
from runner.control.code.shipped_tasks import shipped_tasks
from runner.control.code.source import CodeSource
from runner.control.record.run_store import RunStore
from runner.control.rpc.session import Inbox
from runner.core.codec import encode
from runner.core.errors import Interrupted, NotReady, Problem, RunnerError, StopUnverified
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.launch_request import DryRun, LaunchRequest
from runner.core.model.plan import Plan
from runner.core.model.run_info import PastAttempt, RunInfo
from runner.core.model.spec import Node, Spec
from runner.core.outcome.verdict import STOPPED, Verdict, fold_events
from runner.core.planning.build_plan import build_plan
from runner.core.planning.facts_request import facts_request
from runner.core.planning.readiness import problems_of
from runner.core.protocol.events import Event
from runner.core.protocol.paths import is_rank_source, local_log_name, source_rank
from runner.core.protocol.remote_files import OUTPUT
from runner.core.relaunch.handover import relaunch_context, run_info
from runner.core.relaunch.voters import assign_voters
from runner.ui.console.factory import open_console
from runner.ui.reports import report
from runner.ui.reports.findings import errors, warnings
from runner.ui.reports.stacks import StallReporter
from runner.workflows.code import open_code_source, required_packages
from runner.workflows.download import download_outputs
from runner.workflows.host_pool import (
    FLUSH_TIMEOUT_S,
    HostPool,
    deadline,
    forward_signals,
    user_at_host,
)
from runner.workflows.relaunch import Relauncher


def run(composed: LaunchRequest) -> int:
    """Launch, or rehearse, what was composed; return the exit code.

    Raises:
        RunnerError: Nothing was started.
    """
    if composed.dry_run is not DryRun.OFF:
        dry_run(composed)
        return 0
    source = open_code_source(composed)
    store = RunStore(composed.run_dir)
    store.reserve()
    inbox: Inbox = queue.SimpleQueue()
    try:
        with forward_signals(inbox):
            return LaunchSession(composed, source, store, inbox).run()
    except RunnerError:
        store.discard()
        raise


def dry_run(composed: LaunchRequest) -> None:
    """Print the commands of each host, or the plan as JSON; start nothing.

    Raises:
        RunnerError: A launch would not come that far.
    """
    assumptions: list[str] = []
    if composed.dry_run is DryRun.OFFLINE:
        for note in composed.notes:
            print(f"note: {note}", file=sys.stderr)
        spec, facts, assumptions = assumed_facts(composed.spec)
        plan = build_plan(spec, facts, code=open_code_source(composed).code)
        plan = replace(plan, rendezvous_reason="assumed")
    else:
        source = open_code_source(composed)
        inbox: Inbox = queue.SimpleQueue()
        with forward_signals(inbox):
            plan = LaunchSession(composed, source, RunStore(composed.run_dir), inbox).plan()
    if composed.plan_as_json:
        print(json.dumps(encode(plan)))
    else:
        print(report.render_dry_run(plan, assumptions))


class LaunchSession:
    """One run, with its connections, its record and its console."""

    def __init__(
        self,
        composed: LaunchRequest,
        source: CodeSource,
        store: RunStore,
        inbox: Inbox,
    ) -> None:
        self._composed = composed
        self._store = store
        self._inbox = inbox
        self._launched_at = 0.0
        self._attempt_number = 0
        self._past_attempts: tuple[PastAttempt, ...] = ()
        self._source = source
        self._requirements = required_packages(composed)
        spec = composed.spec
        if spec.min_nodes:
            spec = replace(spec, max_nodes=len(spec.nodes))
        self._all_candidates = spec
        self._spares = spec.spares if spec.relaunch.max else ()
        names = [node.name for node in (*spec.nodes, *self._spares)]
        self._console = open_console(composed.ui, composed.console_ranks, names)
        self._pool = HostPool(spec, self._console, inbox)

    @property
    def spec(self) -> Spec:
        """What the run is asked to be: in a later attempt, perhaps on other nodes."""
        return self._pool.spec

    def run(self) -> int:
        """Return the exit code.

        Raises:
            RunnerError: Nothing was started.
        """
        try:
            facts = self._collect_facts()
            return self._run_attempts(self._push_and_plan(facts), facts)
        finally:
            self._store.unlock()
            self._close()

    def plan(self) -> Plan:
        """Return the plan, and start nothing.

        Raises:
            RunnerError: There is none.
        """
        try:
            facts = self._collect_facts()
            self._source.snapshot_if_needed(facts)
            return build_plan(self.spec, facts, code=self._source.code)
        finally:
            self._close()

    def _push_and_plan(self, facts: dict[str, Facts], attempt: int = 0) -> Plan:
        """Return the plan, once the code is where it is needed.

        Raises:
            RunnerError: There is none, or not everywhere.
        """
        snapshot = self._source.snapshot_if_needed(facts)
        pushed = {name: replace(each, has_release=True) for name, each in facts.items()}
        plan = build_plan(self.spec, pushed, code=self._source.code, attempt=attempt)
        if snapshot:
            self._pool.push(snapshot, facts)
        return plan

    def _close(self) -> None:
        self._console.close(deadline(FLUSH_TIMEOUT_S))
        self._pool.close()

    def _collect_facts(self) -> dict[str, Facts]:
        """Say what there is to say, and ask every host."""
        for note in (*self._composed.notes, *self._source.notes):
            self._console.message(f"note: {note}")
        facts, missing, standby, spare_problems = self._pool.collect_facts_at_least(
            self._facts_request,
            lambda node, node_facts: problems_of(self.spec, node, node_facts),
            self.spec.min_nodes or len(self.spec.nodes),
            self._spares,
            keep_spares=self.spec.detach,
        )
        for name, problem in missing.items():
            self._console.message(f"{name} is left out for now, and tried again: {problem.message}")
        for problem in spare_problems:
            self._console.message(f"note: a spare node cannot be used as it is: {problem}")
        self._select_nodes(facts)
        for warning in self._run_launch_checks(facts):
            self._console.message(f"note: {warning}")
        return {**facts, **standby} if self.spec.detach else facts

    def _facts_request(self, node: Node) -> FactsRequest:
        return facts_request(self.spec, node, self._source.code, self._requirements.names)

    def _run_launch_checks(self, facts: dict[str, Facts]) -> list[str]:
        """Return what of these hosts is worth a warning.

        Raises:
            NotReady: With what keeps them from the run.
        """
        findings = evaluate_checks(
            CheckContext(self.spec, facts, requirements=self._requirements),
            self.spec.skip_checks,
            LAUNCH_CHECKS,
        )
        if problems := [finding.as_problem for finding in errors(findings)]:
            raise NotReady(problems)
        return warnings(findings)

    def _validate(self, facts: dict[str, Facts]) -> list[Problem]:
        """Return what keeps nodes from a later attempt, as it would keep them from a launch."""
        answering = [node for node in self.spec.nodes if node.name in facts]
        problems = [
            problem
            for node in answering
            for problem in problems_of(self.spec, node, facts[node.name])
        ]
        try:
            self._run_launch_checks(facts)
        except NotReady as error:
            problems += error.problems
        return list(dict.fromkeys(problems))

    def _select_nodes(self, facts: dict[str, Facts]) -> None:
        """Have the nodes of these facts be those of the run, of all that may take part."""
        nodes = tuple(node for node in self._all_candidates.nodes if node.name in facts)
        self._pool.retarget(replace(self.spec, nodes=nodes))

    def _admission_hooks(self, facts: dict[str, Facts]) -> AdmissionHooks | None:
        """Return how nodes are taken in that are not there yet, or come back; None for not."""
        if not self.spec.min_nodes:
            return None
        assigned = {node.name for node in (*self.spec.nodes, *self.spec.spares)}
        others = [node for node in self._all_candidates.nodes if node.name not in assigned]
        vacancies = (self.spec.max_nodes or 0) - len(self.spec.nodes)
        nodes = (*self.spec.nodes, *others[:vacancies])  # its master first
        self._all_candidates = replace(self.spec, nodes=nodes)

        def admit(node_facts: Facts) -> tuple[Plan, bytes]:
            spec, all_facts = (
                self.spec,
                {**facts, node_facts.node: replace(node_facts, run_exists=False)},
            )
            try:
                self._select_nodes(all_facts)
                self._run_launch_checks({node_facts.node: all_facts[node_facts.node]})
                plan = build_plan(
                    self.spec, all_facts, code=self._source.code, attempt=self._attempt_number
                )
            except NotReady:
                self._pool.retarget(spec)
                raise
            facts.update(all_facts)
            with contextlib.suppress(OSError):  # it goes on as it is on record
                self._store.write_plan(plan)
            return plan, self._packed_record(plan)

        return AdmissionHooks(
            spec=self._all_candidates,
            request=self._facts_request,
            validate=lambda node, node_facts: problems_of(
                self._all_candidates, node, replace(node_facts, run_exists=False)
            ),
            snapshot_if_needed=self._source.snapshot_if_needed,
            admit=admit,
        )

    def _run_attempts(self, plan: Plan, facts: dict[str, Facts]) -> int:
        plan = self._with_voters(plan, facts)
        with self._writing_record():
            self._store.create(self._composed.config_yaml)
            self._store.write_plan(plan)
        started_at, self._launched_at = time.monotonic(), time.time()
        relauncher = Relauncher(
            self._pool, self._facts_request, self._validate, self._push_and_plan
        )
        monitor, verdict = self._run_attempt(plan, facts)
        cut_short = False
        try:
            while not monitor.detached and (
                upcoming := relauncher.next_attempt(facts, monitor, verdict)
            ):
                plan, facts = upcoming
                self._past_attempts = relauncher.past_attempts
                plan = self._with_voters(plan, facts)
                with self._writing_record():
                    self._store.write_plan(plan)
                monitor, verdict = self._run_attempt(plan, facts)
        except NotReady as error:
            self._console.message(f"not relaunching:\n{error}")
        except Interrupted as error:
            verdict = replace(verdict, state=STOPPED, exit_code=error.exit_code)
            cut_short = True
        if monitor.detached or monitor.peer_status.next_attempt_number:
            return self._report_detached(monitor.plan, monitor)
        plan = monitor.plan  # with those that joined
        verdict = replace(
            verdict, seconds=time.monotonic() - started_at, past_attempts=self._past_attempts
        )
        self._store.write_result(plan, verdict, self._launched_at)
        if self._store.write_error:
            self._console.message(
                f"{self._store.write_error}; the hosts have every log, in their workdir"
            )
        download_report = "" if monitor.interrupted or cut_short else self._download_outputs(plan)
        self._print_report(monitor, verdict, download_report)
        return verdict.exit_code

    @contextlib.contextmanager
    def _writing_record(self) -> Iterator[None]:
        """Say what is wrong with our disk before anything starts that it could not record."""
        try:
            yield
        except OSError as error:
            message = f"cannot write in {self._store.folder}: {error.strerror}"
            raise NotReady(
                [Problem("run_dir", message, "free some space, or set run_dir")]
            ) from error

    def _download_outputs(self, plan: Plan) -> str:
        """Bring home what the task declares as its outputs; return what came of it."""
        if not plan.outputs or not self.spec.pull_outputs:
            return ""
        self._store.unlock()
        return download_outputs(
            self._pool, plan.run_id, self._store.folder, (OUTPUT,), self._composed.cluster_selector
        )

    def _run_attempt(self, plan: Plan, facts: dict[str, Facts]) -> tuple[AttemptMonitor, Verdict]:
        """Carry out a plan; return how that went, and ended."""
        started_at, self._attempt_number = time.monotonic(), plan.attempt
        self._console.message(
            report.attempt_header(plan) if plan.attempt else report.launch_header(plan)
        )
        self._stall_reporter = StallReporter(
            plan, self._console.message, self._store.stacks_reader(plan.attempt)
        )
        monitor = self._pool.monitor(plan, self._on_log, self._on_event)
        relaunch_follows = len(self._past_attempts) < self.spec.relaunch.max
        orders, record = self._order_sender(plan), self._packed_record(plan)
        monitor.start(
            facts, orders, record, self._admission_hooks(facts), relaunch_follows=relaunch_follows
        )
        monitor.run(detach=self.spec.detach)
        verdict = fold_events(monitor.plan, monitor.timed_events, time.monotonic() - started_at)
        if monitor.order_refused and verdict.exit_code < NotReady.exit_code:
            verdict = replace(verdict, exit_code=NotReady.exit_code)
        return monitor, verdict

    def _with_voters(self, plan: Plan, facts: dict[str, Facts]) -> Plan:
        """Have the hosts able to start the run once more by themselves, if that is wanted."""
        relaunches_left = self.spec.relaunch.max - len(self._past_attempts)
        if not self.spec.detach and not self.spec.disconnect_s:  # it goes on with us while we live
            relaunches_left = 0
        self._attempt_orders = assign_voters(self.spec, plan, facts, relaunches_left)
        return self._attempt_orders.plan

    def _order_sender(self, plan: Plan) -> OrderSender:
        tasks = shipped_tasks() if self.spec.task.shipped_file else None
        token, voters = secrets.token_hex(16), self._attempt_orders.voters
        if not voters:
            return OrderSender(self.spec.secrets, token, tasks)
        info = self._run_info(plan)
        context = relaunch_context(
            self.spec, self._source.code, info, self._composed.config_yaml, voters
        )
        return OrderSender(self.spec.secrets, token, tasks, context, self._attempt_orders.standby)

    def _on_event(self, event: Event) -> None:
        self._store.append(event)
        self._stall_reporter.on_event(event)

    def _report_detached(self, plan: Plan, monitor: AttemptMonitor) -> int:
        """Say how the run can be found again; return the exit code."""
        if monitor.hung_up:  # there is nobody to read it
            return 128 + signal.SIGHUP
        self._console.flush_ranks(FLUSH_TIMEOUT_S)
        if monitor.interrupted:
            self._console.verdict(
                report.started_again_notice(plan, self._composed.cluster_selector)
            )
            return StopUnverified.exit_code
        text = report.detach_notice(
            plan,
            self._composed.cluster_selector,
            is_detached=monitor.peer_status.all_detached,
            hub_unreachable=monitor.peer_status.hub_unreachable,
        )
        self._console.verdict(text)
        return 0

    def _run_info(self, plan: Plan) -> RunInfo:
        relaunches_left = self.spec.relaunch.max - len(self._past_attempts)
        return run_info(
            plan, user_at_host(), self._launched_at, self._past_attempts, relaunches_left
        )

    def _packed_record(self, plan: Plan) -> bytes:
        """Return what every host is to have on record of the whole run, packed."""
        info = self._run_info(plan)
        record = {"info": encode(info), "plan": encode(plan), "config": self._composed.config_yaml}
        return zlib.compress(json.dumps(record).encode())

    def _on_log(self, node: str, source: str, stream: str, offset: int, data: bytes) -> None:
        self._store.write_log(
            node, local_log_name(self._attempt_number, source, stream), offset, data
        )
        self._stall_reporter.on_log(source)
        if is_rank_source(source):
            self._console.rank_output(node, source_rank(source), stream, data)

    def _print_report(
        self, monitor: AttemptMonitor, verdict: Verdict, download_report: str
    ) -> None:
        self._console.flush_ranks(FLUSH_TIMEOUT_S)
        text = report.final_report(
            monitor.plan,
            verdict,
            self._store.display_path,
            self._store.tail,
            disconnect_s=0 if monitor.peer_status.any_detached else self.spec.disconnect_s,
            cluster_selector=self._composed.cluster_selector,
        )
        self._console.verdict("\n".join(filter(None, (download_report, text))))
        stop_waiting = (
            deadline(FLUSH_TIMEOUT_S) if verdict.exit_code else lambda: self._pool.signal_pending
        )
        self._console.close(stop_waiting)
