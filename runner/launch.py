"""A launch from the composed configuration to the exit code: what wires control and ui."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from runner.control import bundle
from runner.control.assume import assume
from runner.control.connect import Gathering, Reach
from runner.control.session import Inbox, Session
from runner.control.store import RunStore
from runner.control.watch import Callbacks, Watch
from runner.core.composed import Composed, DryRun
from runner.core.errors import NotReady, Problem, RunnerError
from runner.core.facts import Facts
from runner.core.layout import PROGRAM
from runner.core.plan import Plan, build_plan
from runner.core.spec import Spec
from runner.core.verdict import Verdict, fold
from runner.core.wire import Frame
from runner.ui import report
from runner.ui.console import Console

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HOLD_S = 10.0
SETTLE_S = 2.0
"""How long our last words wait for a console that is busy with the ranks'."""


def run(composed: Composed) -> int:
    """Launch, or rehearse, what was composed; return the exit code.

    Raises:
        RunnerError: Nothing was started.
    """
    if composed.dry_run is DryRun.OFFLINE:
        return _rehearse_offline(composed)
    store = RunStore(composed.run_dir)
    if composed.dry_run is DryRun.OFF:
        store.reserve()
    inbox: Inbox = queue.SimpleQueue()
    try:
        with _signals_to(inbox):
            return Launch(composed, store, inbox).run()
    except RunnerError:
        store.abandon()
        raise


def _rehearse_offline(composed: Composed) -> int:
    for note in composed.notes:
        print(f"note: {note}", file=sys.stderr)
    spec, facts, assumed = assume(composed.spec)
    tasks_hash = bundle.shipped_tasks().hash if spec.task.shipped else ""
    plan = replace(build_plan(spec, facts, tasks_hash=tasks_hash), meeting="assumed")
    print(report.rehearsal(plan, assumed))
    return 0


@contextlib.contextmanager
def _signals_to(inbox: Inbox) -> Iterator[None]:
    """Have every signal that asks us to end arrive in the inbox, in order."""

    def note(signum: int, _: object) -> None:
        inbox.put((None, Frame("signal", {"signal": signum})))

    heeded = [signum for signum in SIGNALS if signal.getsignal(signum) != signal.SIG_IGN]  # nohup
    before = {signum: signal.signal(signum, note) for signum in heeded}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


class Launch:
    """One run, with its connections, its record and its console."""

    def __init__(self, composed: Composed, store: RunStore, inbox: Inbox) -> None:
        self.spec: Spec = composed.spec
        self._composed = composed
        self._store = store
        self._inbox = inbox
        self._tasks = bundle.shipped_tasks() if self.spec.task.shipped else None
        self._console = Console(composed.console_ranks)
        self._reach = Reach(self.spec, self._console.say)
        self._sessions: dict[str, Session] = {}

    def run(self) -> int:
        """Return the exit code.

        Raises:
            RunnerError: Nothing was started.
        """
        for note in self._composed.notes:
            self._console.say(f"note: {note}")
        try:
            facts = self._gather()
            plan = build_plan(self.spec, facts, tasks_hash=self._tasks_hash)
            if self._composed.dry_run is not DryRun.OFF:
                self._console.finish_ranks(2.0)
                print(report.rehearsal(plan))
                return 0
            return self._launch(plan, facts)
        finally:
            self._console.close(_after(2.0))
            for session in list(self._sessions.values()):  # threads may still be connecting
                session.close()
            self._reach.close()

    @property
    def _tasks_hash(self) -> str:
        return self._tasks.hash if self._tasks else ""

    def _gather(self) -> dict[str, Facts]:
        gathering = Gathering(self.spec, self._reach, self._inbox, self._tasks_hash)
        self._sessions = gathering.sessions
        return gathering.run()

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
                plan = build_plan(self.spec, facts, tasks_hash=self._tasks_hash, attempt=1)
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
            console_full=lambda: self._console.full,
            mute=self._console.mute,
        )
        watch = Watch(self.spec, plan, self._reach, self._sessions, self._inbox, callbacks)
        watch.start(facts, self._tasks, offsets)
        watch.run()
        return watch

    def _another_port(self, watch: Watch) -> int:
        """Have the master reserve another port; 0 when it cannot."""
        rule = self.spec.master_port
        session = self._sessions[self.spec.master.name]
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
        self._console.say(text)
        give_up = self._interrupted if verdict.exit_code == 0 else _after(SETTLE_S)
        self._console.close(give_up)

    def _interrupted(self) -> bool:
        """Whether a signal came after the end: then nobody waits for a console any more."""
        with contextlib.suppress(queue.Empty):
            while True:
                sender, _ = self._inbox.get_nowait()
                if sender is None:
                    return True
        return False


def _after(seconds: float) -> Callable[[], bool]:
    """Return a question whose answer turns to yes after so long."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end
