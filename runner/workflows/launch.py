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

from runner.checks.context import Case
from runner.checks.registry import AT_LAUNCH, look
from runner.control.assumed_facts import assume
from runner.control.attempt.admission import Admission
from runner.control.attempt.monitor import Watch
from runner.control.attempt.start import Orders
from runner.control.code.recorded import Again
from runner.control.code.snapshot import Snapshot
from runner.control.record.run_store import RunStore
from runner.control.rpc import bootstrap
from runner.control.rpc.connector import launch_request
from runner.control.rpc.session import Inbox
from runner.core.codec import encode
from runner.core.errors import Interrupted, NotReady, Problem, RunnerError, Unproven
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.launch_request import Composed, DryRun
from runner.core.model.past import Past
from runner.core.model.release import Code
from runner.core.model.run_info import RunInfo
from runner.core.model.spec import Node, Spec
from runner.core.outcome.verdict import STOPPED, Verdict, fold
from runner.core.planning.build_plan import Plan, build_plan
from runner.core.planning.readiness import problems_of
from runner.core.protocol.events import Event
from runner.core.protocol.paths import is_rank, log_name, rank_of
from runner.core.protocol.remote_files import OUTPUT
from runner.core.relaunch.handover import handover, info_of, roster
from runner.ui.console.plain import open_console
from runner.ui.reports import report
from runner.ui.reports.findings import errors, warnings
from runner.ui.reports.stacks import Standstill
from runner.workflows.code import code_of, snapshot_of, wants_of
from runner.workflows.download import fetch
from runner.workflows.host_pool import SETTLE_S, Contact, after, signals_to, whoami
from runner.workflows.relaunch import Attempts


def run(composed: Composed) -> int:
    """Launch, or rehearse, what was composed; return the exit code.

    Raises:
        RunnerError: Nothing was started.
    """
    if composed.dry_run is not DryRun.OFF:
        rehearse(composed)
        return 0
    snapshot = snapshot_of(composed)
    store = RunStore(composed.run_dir)
    store.reserve()
    inbox: Inbox = queue.SimpleQueue()
    try:
        with signals_to(inbox):
            return Launch(composed, snapshot, store, inbox).run()
    except RunnerError:
        store.abandon()
        raise


def rehearse(composed: Composed, *, as_json: bool = False) -> None:
    """Print what each host would be told, or write the plan as JSON; nothing is started.

    Raises:
        RunnerError: A launch would not come that far.
    """
    assumed: list[str] = []
    if composed.dry_run is DryRun.OFFLINE:
        for note in composed.notes:
            print(f"note: {note}", file=sys.stderr)
        spec, facts, assumed = assume(composed.spec)
        plan = build_plan(spec, facts, code=code_of(spec, snapshot_of(composed)))
        plan = replace(plan, meeting="assumed")
    else:
        snapshot = snapshot_of(composed)
        inbox: Inbox = queue.SimpleQueue()
        with signals_to(inbox):
            plan = Launch(composed, snapshot, RunStore(composed.run_dir), inbox).plan()
    print(json.dumps(encode(plan)) if as_json else report.rehearsal(plan, assumed))


class Launch:
    """One run, with its connections, its record and its console."""

    def __init__(
        self,
        composed: Composed,
        snapshot: Snapshot | Again | None,
        store: RunStore,
        inbox: Inbox,
    ) -> None:
        self._composed = composed
        self._store = store
        self._inbox = inbox
        self._began = 0.0
        self._attempt_number = 0
        self._past: tuple[Past, ...] = ()
        self._snapshot = snapshot
        self._wants = wants_of(composed)
        spec = composed.spec
        if spec.least:
            spec = replace(spec, most=len(spec.nodes))
        self._everyone = spec
        self._spares = spec.spares if spec.relaunch.max else ()
        names = [node.name for node in (*spec.nodes, *self._spares)]
        self._console = open_console(composed.ui, composed.console_ranks, names)
        self._contact = Contact(spec, self._console, inbox)

    @property
    def spec(self) -> Spec:
        """What the run is asked to be: in a later attempt, perhaps on other nodes."""
        return self._contact.spec

    def run(self) -> int:
        """Return the exit code.

        Raises:
            RunnerError: Nothing was started.
        """
        try:
            facts = self._gather()
            return self._launch(self._ready(facts), facts)
        finally:
            self._store.release()
            self._close()

    def plan(self) -> Plan:
        """Return the plan, and start nothing.

        Raises:
            RunnerError: There is none.
        """
        try:
            facts = self._gather()
            self._to_push(facts)
            return build_plan(self.spec, facts, code=self._code)
        finally:
            self._close()

    def _ready(self, facts: dict[str, Facts], attempt: int = 0) -> Plan:
        """Return the plan, once the code is where it is needed.

        Raises:
            RunnerError: There is none, or not everywhere.
        """
        snapshot = self._to_push(facts)
        plan = build_plan(self.spec, facts, code=self._code, attempt=attempt)
        if snapshot and self._contact.push(snapshot, facts):
            plan = build_plan(self.spec, facts, code=self._code, attempt=attempt)
        return plan

    def _close(self) -> None:
        self._console.close(after(SETTLE_S))
        self._contact.close()

    def _gather(self) -> dict[str, Facts]:
        """Say what there is to say, and ask every host."""
        left_out = self._snapshot.notes if isinstance(self._snapshot, Snapshot) else ()
        for note in (*self._composed.notes, *left_out):
            self._console.say(f"note: {note}")
        facts, missing, standing_by, unfit = self._contact.gather_enough(
            self._request,
            lambda node, told: problems_of(self.spec, node, told),
            self.spec.least or len(self.spec.nodes),
            self._spares,
            keep_spares=self.spec.detach,
        )
        for name, problem in missing.items():
            self._console.say(f"{name} is left out for now, and tried again: {problem.what}")
        for problem in unfit:
            self._console.say(f"note: a spare node cannot be used as it is: {problem}")
        self._take_part(facts)
        for warning in self._looked(facts):
            self._console.say(f"note: {warning}")
        return {**facts, **standing_by} if self.spec.detach else facts

    def _request(self, node: Node) -> FactsRequest:
        return launch_request(self.spec, node, self._code, self._wants.names)

    def _looked(self, facts: dict[str, Facts]) -> list[str]:
        """Return what of these hosts is worth a warning.

        Raises:
            NotReady: With what keeps them from the run.
        """
        found = look(Case(self.spec, facts, wants=self._wants), self.spec.skip_checks, AT_LAUNCH)
        if problems := [one.problem for one in errors(found)]:
            raise NotReady(problems)
        return warnings(found)

    def _unfit(self, facts: dict[str, Facts]) -> list[Problem]:
        """Return what keeps nodes from a later attempt, as it would keep them from a launch."""
        asked = [node for node in self.spec.nodes if node.name in facts]
        wrong = [each for node in asked for each in problems_of(self.spec, node, facts[node.name])]
        try:
            self._looked(facts)
        except NotReady as error:
            wrong += error.problems
        return list(dict.fromkeys(wrong))

    def _take_part(self, facts: dict[str, Facts]) -> None:
        """Have the nodes of these facts be those of the run, of all that may take part."""
        nodes = tuple(node for node in self._everyone.nodes if node.name in facts)
        self._contact.turn_to(replace(self.spec, nodes=nodes))

    def _admission(self, facts: dict[str, Facts]) -> Admission | None:
        """Return how nodes are taken in that are not there yet, or come back; None for not."""
        if not self.spec.least:
            return None
        taken = {node.name for node in (*self.spec.nodes, *self.spec.spares)}
        others = [node for node in self._everyone.nodes if node.name not in taken]
        room = (self.spec.most or 0) - len(self.spec.nodes)
        nodes = (*self.spec.nodes, *others[:room])  # its master first
        self._everyone = replace(self.spec, nodes=nodes)

        def admit(told: Facts) -> tuple[Plan, bytes]:
            spec, known = self.spec, {**facts, told.node: replace(told, run_there=False)}
            try:
                self._take_part(known)
                self._looked({told.node: known[told.node]})
                plan = build_plan(self.spec, known, code=self._code, attempt=self._attempt_number)
            except NotReady:
                self._contact.turn_to(spec)
                raise
            facts.update(known)
            with contextlib.suppress(OSError):  # it goes on as it is on record
                self._store.write_plan(plan)
            return plan, self._record(plan)

        return Admission(
            spec=self._everyone,
            request=self._request,
            judge=lambda node, told: problems_of(
                self._everyone, node, replace(told, run_there=False)
            ),
            to_push=self._to_push,
            admit=admit,
        )

    def _to_push(self, facts: dict[str, Facts]) -> Snapshot | None:
        if isinstance(self._snapshot, Again):
            return self._snapshot.to_push(facts)
        return self._snapshot

    @property
    def _code(self) -> Code:
        return code_of(self.spec, self._snapshot)

    def _launch(self, plan: Plan, facts: dict[str, Facts]) -> int:
        plan = self._enrolled(plan, facts)
        with self._writing():
            self._store.create(self._composed.config_yaml)
            self._store.write_plan(plan)
        began, self._began = time.monotonic(), time.time()
        attempts = Attempts(self._contact, self._request, self._unfit, self._ready)
        watch, verdict = self._attempt(plan, facts)
        cut_short = False
        try:
            while not watch.left and (follows := attempts.after(facts, watch, verdict)):
                plan, facts = follows
                self._past = attempts.past
                plan = self._enrolled(plan, facts)
                with self._writing():
                    self._store.write_plan(plan)
                watch, verdict = self._attempt(plan, facts)
        except NotReady as error:
            self._console.say(f"no attempt follows:\n{error}")
        except Interrupted as error:
            verdict = replace(verdict, state=STOPPED, exit_code=error.exit_code)
            cut_short = True
        if watch.left or watch.accord.onward:
            return self._left(watch.plan, watch)
        plan = watch.plan  # with those that joined
        verdict = replace(verdict, seconds=time.monotonic() - began, past=self._past)
        self._store.write_result(plan, verdict, self._began)
        if self._store.failed:
            self._console.say(f"{self._store.failed}; the hosts have every log, in their workdir")
        fetched = "" if watch.interrupted or cut_short else self._fetch(plan)
        self._report(watch, verdict, fetched)
        return verdict.exit_code

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Say what is wrong with our disk before anything starts that it could not record."""
        try:
            yield
        except OSError as error:
            what = f"cannot write in {self._store.folder}: {error.strerror}"
            raise NotReady([Problem("run_dir", what, "free some space, or set run_dir")]) from error

    def _fetch(self, plan: Plan) -> str:
        """Bring home what the task declares as its outputs; return what came of it."""
        if not plan.outputs or not self.spec.pull_outputs:
            return ""
        self._store.release()
        return fetch(
            self._contact, plan.run_id, self._store.folder, (OUTPUT,), self._composed.where
        )

    def _attempt(self, plan: Plan, facts: dict[str, Facts]) -> tuple[Watch, Verdict]:
        """Carry out a plan; return how that went, and ended."""
        began, self._attempt_number = time.monotonic(), plan.attempt
        self._console.say(report.reopening(plan) if plan.attempt else report.opening(plan))
        self._standstill = Standstill(plan, self._console.say, self._store.stacks_of(plan.attempt))
        watch = self._contact.watch(plan, self._log, self._happened)
        hurries = len(self._past) < self.spec.relaunch.max
        orders, record = self._orders(plan), self._record(plan)
        watch.start(facts, orders, record, self._admission(facts), hurries=hurries)
        watch.run(detach=self.spec.detach)
        verdict = fold(watch.plan, watch.observed, time.monotonic() - began)
        if watch.refused and verdict.exit_code < NotReady.exit_code:
            verdict = replace(verdict, exit_code=NotReady.exit_code)
        return watch, verdict

    def _enrolled(self, plan: Plan, facts: dict[str, Facts]) -> Plan:
        """Have the hosts able to start the run once more by themselves, if that is wanted."""
        left = self.spec.relaunch.max - len(self._past)
        if not self.spec.detach and not self.spec.disconnect_s:  # it goes on with us while we live
            left = 0
        self._roster = roster(self.spec, plan, facts, left)
        return self._roster.plan

    def _orders(self, plan: Plan) -> Orders:
        tasks = bootstrap.shipped_tasks() if self.spec.task.shipped else None
        token, voters = secrets.token_hex(16), self._roster.voters
        if not voters:
            return Orders(self.spec.secrets, token, tasks)
        info = self._info(plan)
        handed = handover(self.spec, self._code, info, self._composed.config_yaml, voters)
        return Orders(self.spec.secrets, token, tasks, handed, self._roster.standby)

    def _happened(self, event: Event) -> None:
        self._store.append(event)
        self._standstill.heard(event)

    def _left(self, plan: Plan, watch: Watch) -> int:
        """Say how the run can be found again; return the exit code."""
        if watch.hung_up:  # there is nobody to read it
            return 128 + signal.SIGHUP
        self._console.finish_ranks(SETTLE_S)
        if watch.interrupted:
            self._console.verdict(report.begun_anew(plan, self._composed.where))
            return Unproven.exit_code
        left = report.leaving(
            plan, self._composed.where, kept=watch.accord.kept, apart=watch.accord.apart
        )
        self._console.verdict(left)
        return 0

    def _info(self, plan: Plan) -> RunInfo:
        left = self.spec.relaunch.max - len(self._past)
        return info_of(plan, whoami(), self._began, self._past, left)

    def _record(self, plan: Plan) -> bytes:
        """Return what every host is to have on record of the whole run, packed."""
        info = self._info(plan)
        told = {"info": encode(info), "plan": encode(plan), "config": self._composed.config_yaml}
        return zlib.compress(json.dumps(told).encode())

    def _log(self, node: str, source: str, stream: str, offset: int, data: bytes) -> None:
        self._store.write_log(node, log_name(self._attempt_number, source, stream), offset, data)
        self._standstill.log(source)
        if is_rank(source):
            self._console.show(node, rank_of(source), stream, data)

    def _report(self, watch: Watch, verdict: Verdict, fetched: str) -> None:
        self._console.finish_ranks(SETTLE_S)
        text = report.ending(
            watch.plan,
            verdict,
            self._store.shown,
            self._store.tail,
            disconnect_s=0 if watch.accord.kept_by_any else self.spec.disconnect_s,
            where=self._composed.where,
        )
        self._console.verdict("\n".join(filter(None, (fetched, text))))
        give_up = after(SETTLE_S) if verdict.exit_code else lambda: self._contact.signalled
        self._console.close(give_up)
