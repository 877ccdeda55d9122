"""A launch from the composed configuration to the exit code: what wires control and ui."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import time
from dataclasses import replace
from pathlib import Path

from runner.contact import SETTLE_S, Contact, after, signals_to
from runner.control import bundle
from runner.control.assume import assume
from runner.control.connect import launch_request
from runner.control.session import Inbox
from runner.control.snapshot import Snapshot
from runner.control.store import RunStore
from runner.control.watch import Callbacks, Watch
from runner.core.codec import encode
from runner.core.composed import Composed, DryRun
from runner.core.errors import NotReady, Problem, RunnerError
from runner.core.facts import Facts
from runner.core.layout import PROGRAM
from runner.core.plan import Plan, build_plan
from runner.core.readiness import problems_of
from runner.core.release import Code
from runner.core.spec import Spec
from runner.core.verdict import Verdict, fold
from runner.ui import report
from runner.ui.console import open_console

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


def snapshot_of(composed: Composed) -> Snapshot | None:
    """Begin a snapshot of the user's code if the run needs one.

    Raises:
        ConfigError: It cannot be pushed.
    """
    if not composed.spec.pushes:
        return None
    return Snapshot.take(composed.spec, Path.cwd(), composed.run_dir)


def _code(spec: Spec, snapshot: Snapshot | None) -> Code:
    if snapshot is not None:
        return snapshot.code
    return Code(tasks_hash=bundle.shipped_tasks().hash) if spec.task.shipped else Code()


class Launch:
    """One run, with its connections, its record and its console."""

    def __init__(
        self, composed: Composed, snapshot: Snapshot | None, store: RunStore, inbox: Inbox
    ) -> None:
        self.spec: Spec = composed.spec
        self._composed = composed
        self._store = store
        self._inbox = inbox
        self._snapshot = snapshot
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
            plan = build_plan(self.spec, facts, code=self._code)
            if self._snapshot and self._contact.push(self._snapshot, facts):
                plan = build_plan(self.spec, facts, code=self._code)
            return self._launch(plan, facts)
        finally:
            self._close()

    def plan(self) -> Plan:
        """Return the plan, and start nothing.

        Raises:
            RunnerError: There is none.
        """
        try:
            return build_plan(self.spec, self._gather(), code=self._code)
        finally:
            self._close()

    def _close(self) -> None:
        self._console.close(after(SETTLE_S))
        self._contact.close()

    def _gather(self) -> dict[str, Facts]:
        """Say what there is to say, and ask every host."""
        for note in (*self._composed.notes, *(self._snapshot.notes if self._snapshot else ())):
            self._console.say(f"note: {note}")
        return self._contact.gather(
            lambda node: launch_request(self.spec, node, self._code),
            lambda node, told: problems_of(self.spec, node, told),
        )

    @property
    def _code(self) -> Code:
        return _code(self.spec, self._snapshot)

    def _launch(self, plan: Plan, facts: dict[str, Facts]) -> int:
        try:
            self._store.create(self._composed.config_yaml)
            self._store.write_plan(plan)
        except OSError as error:
            what = f"cannot write in {self._store.folder}: {error.strerror}"
            raise NotReady([Problem("run_dir", what, "free some space, or set run_dir")]) from error
        began, began_wall = time.monotonic(), time.time()
        watch = self._attempt(plan, facts, {})
        if watch.may_retry and not self.spec.master_port.fixed:
            port = self._another_port(watch)
            if port and not watch.interrupted:
                self._console.say("trying once more with another port")
                master = self.spec.master.name
                facts = {**facts, master: replace(facts[master], held_port=port)}
                plan = build_plan(self.spec, facts, code=self._code, attempt=1)
                self._store.write_plan(plan)
                watch = self._attempt(plan, facts, watch.events_offsets)
        verdict = fold(plan, watch.observed, time.monotonic() - began)
        if watch.refused:
            verdict = replace(verdict, state="failed", exit_code=max(3, verdict.exit_code))
        self._store.write_result(plan, verdict, began_wall)
        if self._store.failed:
            self._console.say(f"{self._store.failed}; the hosts have every log, in their workdir")
        self._report(plan, verdict)
        return verdict.exit_code

    def _attempt(self, plan: Plan, facts: dict[str, Facts], offsets: dict[str, int]) -> Watch:
        self._console.say(report.opening(plan))
        callbacks = Callbacks(
            record=self._store.append,
            log=self._log,
            say=self._console.say,
            phase=self._console.phase,
            state=self._console.state,
            console_full=lambda: self._console.full,
            mute=self._console.mute,
        )
        watch = Watch(
            self.spec, plan, self._contact.reach, self._contact.sessions, self._inbox, callbacks
        )
        tasks = bundle.shipped_tasks() if self.spec.task.shipped else None
        watch.start(facts, tasks, offsets)
        watch.run()
        return watch

    def _another_port(self, watch: Watch) -> int:
        """Have the master reserve another port; 0 when it cannot."""
        rule = self.spec.master_port
        session = self._contact.sessions[self.spec.master.name]
        number = session.request("hold", {"first": rule.first, "last": rule.last})
        deadline = time.monotonic() + HOLD_S
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                sender, frame = self._inbox.get(timeout=0.1)
                if sender is None:
                    watch.interrupt(int(frame.data["signal"]))
                    return 0
                if sender is session and frame.data.get("id") == number:
                    return int(frame.data.get("port", 0))
        return 0

    def _log(self, node: str, source: str, stream: str, data: bytes) -> None:
        self._store.append_log(node, f"{source}.{stream}", data)
        if source != PROGRAM:
            self._console.show(node, int(source.rpartition("_")[2]), stream, data)

    def _report(self, plan: Plan, verdict: Verdict) -> None:
        self._console.finish_ranks(SETTLE_S)
        folder = os.path.relpath(self._store.folder)
        text = report.ending(
            plan,
            verdict,
            self._store.folder if folder.startswith("..") else type(self._store.folder)(folder),
            self._store.tail,
            disconnect_s=self.spec.disconnect_s,
        )
        self._console.verdict(text)
        give_up = self._interrupted if verdict.exit_code == 0 else after(SETTLE_S)
        self._console.close(give_up)

    def _interrupted(self) -> bool:
        """Whether a signal came after the end: then nobody waits for a console any more."""
        with contextlib.suppress(queue.Empty):
            while True:
                sender, _ = self._inbox.get_nowait()
                if sender is None:
                    return True
        return False
