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
from pathlib import Path

from runner.checks.all import AT_LAUNCH, look
from runner.checks.case import Case
from runner.contact import SETTLE_S, Contact, after, signals_to, whoami
from runner.control import bundle
from runner.control.again import Again
from runner.control.assume import assume
from runner.control.connect import launch_request
from runner.control.joining import Admission
from runner.control.session import Inbox, Session
from runner.control.snapshot import Snapshot
from runner.control.store import RunStore
from runner.control.watch import Watch
from runner.core.codec import encode
from runner.core.composed import Composed, DryRun
from runner.core.errors import NotReady, Problem, RunnerError
from runner.core.events import Event
from runner.core.facts import Facts, FactsRequest
from runner.core.fetch import OUTPUT
from runner.core.layout import is_rank, log_name, rank_of
from runner.core.packages import Wants
from runner.core.plan import Plan, build_plan
from runner.core.readiness import problems_of
from runner.core.release import Code
from runner.core.seen import RunInfo
from runner.core.spec import Node, Spec
from runner.core.verdict import Verdict, fold
from runner.core.wire import Frame
from runner.home import fetch
from runner.ui import report
from runner.ui.console import open_console
from runner.ui.findings import errors, warnings
from runner.ui.stacks import Standstill

HOLD_S = 10.0


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
        plan = build_plan(spec, facts, code=_code(spec, snapshot_of(composed)))
        plan = replace(plan, meeting="assumed")
    else:
        snapshot = snapshot_of(composed)
        inbox: Inbox = queue.SimpleQueue()
        with signals_to(inbox):
            plan = Launch(composed, snapshot, RunStore(composed.run_dir), inbox).plan()
    print(json.dumps(encode(plan)) if as_json else report.rehearsal(plan, assumed))


def snapshot_of(composed: Composed) -> Snapshot | Again | None:
    """Begin a snapshot of the user's code if the run needs one, or find that of a past run.

    Raises:
        ConfigError: It cannot be pushed, or is not to be had.
    """
    if composed.recorded:
        return Again(composed.recorded, composed.spec, Path.cwd(), composed.run_dir)
    if not composed.spec.pushes:
        return None
    return Snapshot.take(composed.spec, Path.cwd(), composed.run_dir)


def _code(spec: Spec, snapshot: Snapshot | Again | None) -> Code:
    if snapshot is not None:
        return snapshot.code
    return Code(tasks_hash=bundle.shipped_tasks().hash) if spec.task.shipped else Code()


def _wants(composed: Composed) -> Wants:
    """Return what packages the ranks' project names; of a past run, and of our tasks, none."""
    spec = composed.spec
    if spec.task.shipped or composed.recorded or "packages" in spec.skip_checks:
        return Wants()
    from runner.control.requirements import of_project

    return of_project(spec, Path.cwd())


class Launch:
    """One run, with its connections, its record and its console."""

    def __init__(
        self,
        composed: Composed,
        snapshot: Snapshot | Again | None,
        store: RunStore,
        inbox: Inbox,
    ) -> None:
        self.spec: Spec = composed.spec
        if self.spec.least:
            self.spec = replace(self.spec, most=len(self.spec.nodes))
        self._everyone = self.spec
        self._composed = composed
        self._store = store
        self._inbox = inbox
        self._began = 0.0
        self._attempt_number = 0
        self._snapshot = snapshot
        self._wants = _wants(composed)
        names = [node.name for node in self.spec.nodes]
        self._console = open_console(composed.ui, composed.console_ranks, names)
        self._contact = Contact(self.spec, self._console, inbox)

    def run(self) -> int:
        """Return the exit code.

        Raises:
            RunnerError: Nothing was started.
        """
        try:
            facts = self._gather()
            snapshot = self._to_push(facts)
            plan = build_plan(self.spec, facts, code=self._code)
            if snapshot and self._contact.push(snapshot, facts):
                plan = build_plan(self.spec, facts, code=self._code)
            return self._launch(plan, facts)
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

    def _close(self) -> None:
        self._console.close(after(SETTLE_S))
        self._contact.close()

    def _gather(self) -> dict[str, Facts]:
        """Say what there is to say, and ask every host."""
        left_out = self._snapshot.notes if isinstance(self._snapshot, Snapshot) else ()
        for note in (*self._composed.notes, *left_out):
            self._console.say(f"note: {note}")
        facts, missing = self._contact.gather_enough(
            self._request,
            lambda node, told: problems_of(self.spec, node, told),
            self.spec.least or len(self.spec.nodes),
        )
        for name, problem in missing.items():
            self._console.say(f"{name} is left out for now, and tried again: {problem.what}")
        self._take_part(facts)
        for warning in self._looked(facts):
            self._console.say(f"note: {warning}")
        return facts

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

    def _take_part(self, facts: dict[str, Facts]) -> None:
        """Have the nodes of these facts be those of the run, of all that may take part."""
        nodes = tuple(node for node in self._everyone.nodes if node.name in facts)
        self.spec = replace(self.spec, nodes=nodes, most=self._everyone.most)

    def _admission(self, facts: dict[str, Facts]) -> Admission | None:
        """Return how nodes are taken in that are not there yet, or come back; None for not."""
        if not self.spec.least:
            return None

        def admit(told: Facts) -> tuple[Plan, bytes]:
            spec, before = self.spec, dict(facts)
            facts[told.node] = replace(told, run_there=False)
            try:
                self._take_part(facts)
                self._looked({told.node: facts[told.node]})
                plan = build_plan(self.spec, facts, code=self._code, attempt=self._attempt_number)
            except NotReady:
                self.spec = spec
                facts.clear()
                facts.update(before)
                raise
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
        return _code(self.spec, self._snapshot)

    def _launch(self, plan: Plan, facts: dict[str, Facts]) -> int:
        with self._writing():
            self._store.create(self._composed.config_yaml)
            self._store.write_plan(plan)
        began, self._began = time.monotonic(), time.time()
        watch = self._attempt(plan, facts)
        if watch.may_retry and self.spec.rendezvous.held and not self.spec.master_port.fixed:
            port, hub_port = self._other_ports(watch)
            if port and not watch.interrupted:
                self._console.say("trying once more with another port")
                master = self.spec.master.name
                facts = {**facts, master: replace(facts[master], held_port=port, hub_port=hub_port)}
                plan = build_plan(self.spec, facts, code=self._code, attempt=1)
                with self._writing():
                    self._store.write_plan(plan)
                watch = self._attempt(plan, facts)
        if watch.left:
            return self._left(plan, watch)
        plan = watch.plan  # with those that joined
        verdict = fold(plan, watch.observed, time.monotonic() - began)
        if watch.refused and verdict.exit_code < NotReady.exit_code:
            verdict = replace(verdict, exit_code=NotReady.exit_code)
        self._store.write_result(plan, verdict, self._began)
        if self._store.failed:
            self._console.say(f"{self._store.failed}; the hosts have every log, in their workdir")
        fetched = self._fetch(plan) if not watch.interrupted else ""
        self._report(plan, verdict, fetched)
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

    def _attempt(self, plan: Plan, facts: dict[str, Facts]) -> Watch:
        self._attempt_number = plan.attempt
        self._console.say(report.opening(plan))
        self._standstill = Standstill(plan, self._console.say, self._store.stacks_of(plan.attempt))
        watch = self._contact.watch(plan, self._log, self._happened)
        tasks = bundle.shipped_tasks() if self.spec.task.shipped else None
        token = secrets.token_hex(16)
        watch.start(facts, tasks, self._record(plan), token, self._admission(dict(facts)))
        watch.run(detach=self.spec.detach)
        return watch

    def _happened(self, event: Event) -> None:
        self._store.append(event)
        self._standstill.heard(event)

    def _left(self, plan: Plan, watch: Watch) -> int:
        """Say how the run can be found again; return the exit code."""
        if watch.hung_up:  # there is nobody to read it
            return 128 + signal.SIGHUP
        self._console.finish_ranks(SETTLE_S)
        self._console.verdict(report.leaving(plan, self._composed.where, kept=watch.kept))
        return 0

    def _record(self, plan: Plan) -> bytes:
        """Return what every host is to have on record of the whole run, packed."""
        info = RunInfo(
            run_id=plan.run_id,
            cluster=plan.cluster,
            task=plan.task,
            by=whoami(),
            began=self._began,
            nodes=plan.most or len(plan.nodes),
            least=plan.least,
            world_size=plan.world_size,
            gpus={share.node: len(share.gpus) for share in plan.nodes if share.gpus},
            attempt=plan.attempt,
        )
        told = {"info": encode(info), "plan": encode(plan), "config": self._composed.config_yaml}
        return zlib.compress(json.dumps(told).encode())

    def _other_ports(self, watch: Watch) -> tuple[int, int]:
        """Have the master reserve other ports, the store's and the hub's; 0 when it cannot."""
        rule = self.spec.master_port
        session = self._contact.sessions[self.spec.master.name]
        number = session.request(
            "hold", {"first": rule.first, "last": rule.last, "hub": len(self.spec.nodes) > 1}
        )
        deadline = time.monotonic() + HOLD_S
        later: list[tuple[Session | None, Frame]] = []
        try:
            while time.monotonic() < deadline:
                with contextlib.suppress(queue.Empty):
                    sender, frame = self._inbox.get(timeout=0.1)
                    if sender is None:
                        watch.interrupt(int(frame.data["signal"]))
                        return 0, 0
                    if sender is session and frame.data.get("id") == number:
                        told = frame.data
                        return int(told.get("port", 0)), int(told.get("hub_port", 0))
                    later.append((sender, frame))
            return 0, 0
        finally:
            for each in later:
                self._inbox.put(each)

    def _log(self, node: str, source: str, stream: str, offset: int, data: bytes) -> None:
        self._store.write_log(node, log_name(self._attempt_number, source, stream), offset, data)
        self._standstill.log(source)
        if is_rank(source):
            self._console.show(node, rank_of(source), stream, data)

    def _report(self, plan: Plan, verdict: Verdict, fetched: str) -> None:
        self._console.finish_ranks(SETTLE_S)
        text = report.ending(
            plan,
            verdict,
            self._store.shown,
            self._store.tail,
            disconnect_s=self.spec.disconnect_s,
            where=self._composed.where,
        )
        self._console.verdict("\n".join(filter(None, (fetched, text))))
        give_up = after(SETTLE_S) if verdict.exit_code else lambda: self._contact.signalled
        self._console.close(give_up)
