"""A run that is on, or over, joined from anywhere: its screen, its logs, its end."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.record.log_reader import LogDump, RankDiscovery
from runner.control.record.run_store import RunStore
from runner.control.rpc.session import Inbox
from runner.core.errors import ConfigError, Interrupted
from runner.core.model.launch_request import LaunchRequest
from runner.core.model.plan import Plan
from runner.core.model.results import PullResult
from runner.core.model.run_info import current_hosts
from runner.core.outcome.exits import SIGNAL_EXIT_BASE
from runner.core.outcome.verdict import Verdict, fold_events
from runner.core.protocol.events import EndUnverified, Event
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import is_rank_source, local_log_name, source_rank
from runner.core.protocol.remote_files import LOG, OUTPUT
from runner.ui.console.plain import Console
from runner.ui.reports import report
from runner.ui.reports.grep import OutputSink
from runner.ui.reports.stacks import StallReporter
from runner.workflows.discovery import RunFinder, RunRecord
from runner.workflows.download import download_outputs, download_run
from runner.workflows.host_pool import FLUSH_TIMEOUT_S, user_at_host
from runner.workflows.next_attempt import NextAttemptFinder

DETACH_QUESTION = "Ctrl-C: detach, and the run goes on, or stop it? Type d or s, and Enter (d)"

RankSelector = Callable[[Plan], Sequence[int]]
"""Returns the ranks that are wanted of a plan."""


class AttachedRun:
    """One run on the hosts of a cluster, with its console, and its record on this machine.

    The record is written only where nobody else does, and only what it lacks.

    Attributes:
        has_output: Whether any of the ranks whose logs were read had written anything.
    """

    def __init__(self, composed: LaunchRequest, finder: RunFinder, run_id: str) -> None:
        self.finder = finder
        self.cluster_selector = composed.cluster_selector
        self.has_output = False
        self.console = finder.pool.console
        self.run = finder.find(run_id)
        self.record: RunRecord = finder.load_record(self.run)
        self.store = RunStore(composed.run_dir.parent / self.record.plan.run_id)
        self._outcome_unknown = False
        self._load_attempt()

    def _load_attempt(self) -> None:
        """Turn to the attempt on record."""
        self.plan = self.record.plan
        self.spec = self.finder.retarget_to_run(self.plan)
        self._stall_reporter = StallReporter(
            self.plan, self.console.message, self.store.stacks_reader(self.plan.attempt)
        )

    def _switch_to_next_attempt(self, monitor: AttemptMonitor) -> bool:
        """Turn to the attempt that follows; False if there is none, or it is not to be found.

        Raises:
            Interrupted: By a signal.
        """
        search = NextAttemptFinder(self.finder, self.run, self.plan)
        code = self._verdict(monitor).exit_code
        already_ended = self.already_ended and not self.relaunch_pending
        record = search.find(
            monitor, failed=0 < code < SIGNAL_EXIT_BASE, already_ended=already_ended
        )
        if record is None:
            self.finder.retarget_to_run(self.plan)
            self._outcome_unknown = search.announced
            return False
        self.run, self.record = search.run, record
        self._load_attempt()
        return True

    @property
    def already_ended(self) -> bool:
        """Whether nothing of it was on anywhere when we came."""
        statuses = current_hosts(self.run.by_host)
        is_complete = all(share.node in statuses for share in self.plan.nodes)
        return is_complete and not any(status.is_active for status in statuses.values())

    @property
    def relaunch_pending(self) -> bool:
        """Whether its launch was about to start it once more when we came."""
        return any(status.relaunch_pending for status in current_hosts(self.run.by_host).values())

    def attach(self, tail: int | None) -> int:
        """Show it as its launch would; return the exit code."""
        log_start = {} if tail is None else {"tail": tail}
        while True:
            owns_record = self.store.reopen(self.record.config_yaml, self.plan)
            monitor = self._follow_attempt(log_start, owns_record=owns_record)
            if monitor.hung_up or self.console.reader_gone:  # there is nobody to read it
                return 128 + (signal.SIGHUP if monitor.hung_up else signal.SIGPIPE)
            if monitor.detached:
                return self._report_detached(monitor)
            self.console.reset_lines()
            if not self._switch_to_next_attempt(monitor):
                break
            log_start = {}
            self.store.unlock()
        self.console.flush_ranks(FLUSH_TIMEOUT_S)
        verdict = self._verdict(monitor)
        if owns_record:
            self._write_result(verdict)
        download_report = ""
        outputs = (OUTPUT,) if self.plan.outputs and self.spec.pull_outputs else ()
        logs = (LOG,) if tail is not None else ()  # what came before the last lines
        if owns_record and not monitor.interrupted and (outputs or logs):
            self.store.unlock()
            kinds = (*logs, *outputs)
            download_report = download_outputs(
                self.finder.pool, self.plan.run_id, self.store.folder, kinds, self.cluster_selector
            )
        if self.store.write_error:
            self.console.message(
                f"{self.store.write_error}; the hosts have every log, in their workdir"
            )
        self._print_report(verdict, download_report, detached=monitor.peer_status.any_detached)
        return verdict.exit_code

    def _follow_attempt(
        self, log_start: Mapping[str, float], *, owns_record: bool
    ) -> AttemptMonitor:
        """Show one attempt to its end."""
        self.console.message(report.launch_header(self.plan))
        monitor = self.finder.pool.monitor(
            self.plan,
            self._on_log if owns_record else self._show_log,
            self._on_event if owns_record else lambda _: None,
        )
        self._show_participants()
        monitor.on_interrupt = DetachPrompt(monitor, self.finder.pool.inbox, self.console)
        age = max(0.0, time.time() - self.record.info.launched_at)
        monitor.attach(start_at=log_start, read_only=self.already_ended, age_s=age)
        monitor.run()
        return monitor

    def _show_participants(self) -> None:
        """Show the hosts that were asked for this run, and not those that are no part of it."""
        contacted = {*self.finder.facts, *self.finder.unreachable}
        standby = {*self.record.info.standby_nodes}
        for name in contacted.difference(share.node for share in self.plan.nodes):
            self.console.node_status(name, "spare" if name in standby else "")

    def _report_detached(self, monitor: AttemptMonitor) -> int:
        """Say how it goes on without us."""
        self.console.flush_ranks(FLUSH_TIMEOUT_S)
        text = report.detach_notice(
            *(self.plan, self.cluster_selector),
            is_detached=monitor.peer_status.all_detached,
            is_stopping=monitor.is_stopping,
            hub_unreachable=monitor.peer_status.hub_unreachable,
        )
        self.console.verdict(text)
        return 0

    def stop(self) -> tuple[Verdict, dict[str, int | str]]:
        """End it on every host, and prove that: also on those of earlier attempts.

        Returns:
            The verdict, and for each node what is left: how many processes, or why that is not
            known.

        Raises:
            Interrupted: The terminal was closed.
        """
        monitor = self.finder.pool.monitor(self.plan)
        monitor.attach(logs=False, read_only=self.already_ended)
        if self.already_ended:
            state = "is between two attempts" if self.relaunch_pending else "had ended"
            self.console.message(f"run {self.plan.run_id} {state}; looking for what is left of it")
        else:
            monitor.stop_by_user(f"told to stop by {user_at_host()}")
        monitor.run()
        try:
            if monitor.peer_status.next_attempt_number and self._switch_to_next_attempt(
                monitor
            ):  # it had been decided before
                return self.stop()
        except Interrupted as error:
            message = f"interrupted; run {self.plan.run_id} was told to stop, its end was not seen"
            raise Interrupted(error.exit_code, message) from None
        if monitor.detached:  # the hosts go on with it by themselves, and politely
            raise Interrupted(128 + signal.SIGHUP, f"run {self.plan.run_id} is being stopped")
        verdict = self._verdict(monitor)
        unreachable = self.finder.unreachable
        leftovers: dict[str, int | str] = {
            name: unreachable[name].message if name in unreachable else "it did not answer"
            for name in (*self.all_nodes, *self.run.by_host)
        }
        broadcast = self.finder.broadcast(leftovers)
        try:
            answers, problems = broadcast.collect(
                "kill_leftovers", {"run_id": self.plan.run_id}, "leftovers"
            )
        except Interrupted as error:
            message = f"interrupted; run {self.plan.run_id} was stopped, what is left is not known"
            raise Interrupted(error.exit_code, message) from None
        leftovers.update({name: problem.message for name, problem in problems.items()})
        leftovers.update({name: len(reply["survivors"]) for name, reply in answers.items()})
        return verdict, leftovers

    @property
    def all_nodes(self) -> tuple[str, ...]:
        """The nodes that have, or had, a part in it."""
        shares = (share.node for share in self.plan.nodes)
        return tuple(dict.fromkeys((*shares, *self.record.info.past_nodes)))

    def pull(self) -> dict[str, PullResult]:
        """Bring home what the hosts have of it; how it ended, too, if that is not on record here.

        Raises:
            NotReady: The folder cannot be written to, or somebody else does so.
            Interrupted: By a signal; the next pull goes on from there.
        """
        owns_record = self.store.reopen(self.record.config_yaml, self.plan)
        verdict: Verdict | None = None
        if (
            owns_record
            and self.already_ended
            and not self.relaunch_pending
            and not self.store.has_result
        ):
            monitor = self.finder.pool.monitor(self.plan, record=self.store.append_once)
            interrupted = _leave_on_signal(monitor)
            monitor.attach(logs=False, read_only=True)
            monitor.run()
            if interrupted:
                raise Interrupted(128 + interrupted[0], "interrupted; nothing was fetched")
            verdict = self._verdict(monitor)
        self.store.unlock()
        pool, run_id = self.finder.pool, self.plan.run_id
        try:
            pulled = download_run(pool, run_id, self.store.folder, nodes=self.run.by_host)
        except Interrupted as error:
            pull_command = f"python -m runner pull --run {run_id} {self.cluster_selector}"
            message = f"interrupted; what came is kept, and this goes on from there: {pull_command}"
            raise Interrupted(error.exit_code, message) from None
        if verdict and self.store.reopen(self.record.config_yaml, self.plan):
            self._write_result(verdict)
            self.store.unlock()
        return pulled

    def logs(self, show: OutputSink, select: RankSelector, log_start: Mapping[str, float]) -> int:
        """Show what the ranks that `select` returns of a plan wrote, one after the other.

        Returns:
            0, or 3 where some of it could not be had.
        """
        pool, say = self.finder.pool, self.console.message
        if self.plan.attempt:
            say(f"attempt {self.plan.attempt + 1}, the last one; pull brings those before it, too")
        self._discover_ranks()
        ranks = select(self.plan)
        unreachable = {
            share.node
            for share in self.plan.nodes
            if share.node not in pool.sessions and set(share.ranks) & set(ranks)
        }
        dump = LogDump(
            *(pool.sessions, pool.inbox, self.spec.lost_s, self._count_output(show), log_start),
            lambda: self.console.is_full,
        )
        try:
            dump.run(self.plan.nodes, ranks)
        except Interrupted as error:  # nothing was begun that there were something to say of
            return error.exit_code
        for problem in dump.problems.values():
            say(f"{problem.subject}: {problem.message}")
        for name in sorted(unreachable - dump.problems.keys()):
            say(
                f"{name}: {self.finder.unreachable[name].message}"
                if name in self.finder.unreachable
                else name
            )
        return 3 if dump.problems or unreachable else 0

    def follow(
        self,
        show: OutputSink,
        select: RankSelector,
        log_start: Mapping[str, float],
        on_attempt_end: Callable[[], None] = lambda: None,
    ) -> int:
        """Show the logs as ranks write them, to the end of the run.

        `on_attempt_end` is called after each attempt.

        Returns:
            0, or 3 where some of it could not be had; 128 and a signal.
        """
        first = self.plan.attempt
        while True:
            self._discover_ranks()
            try:
                ranks = select(self.plan)
            except ConfigError as error:  # the node takes no part any more
                if self.plan.attempt == first:
                    raise
                self.console.message(str(error))
                return 0
            self._show_participants()
            monitor = self.finder.pool.monitor(self.plan, _to_rank_log(self._count_output(show)))
            interrupted = _leave_on_signal(monitor)
            monitor.attach(start_at=log_start, ranks=ranks, read_only=True)
            monitor.run()
            on_attempt_end()
            self.console.reset_lines()
            if interrupted:
                return 128 + interrupted[0]
            if not self._switch_to_next_attempt(monitor):
                break
            log_start = {}
            self.console.message(f"attempt {self.plan.attempt + 1}")
        unverified = (
            s.event.node for s in monitor.timed_events if isinstance(s.event.body, EndUnverified)
        )
        missing = any(set(self.plan.node(node).ranks) & set(ranks) for node in unverified)
        return 3 if missing else 0

    def _discover_ranks(self) -> None:
        """Put into the plan which ranks each node had so far, where only torch decides that."""
        if self.plan.torch_assigns_ranks:
            pool = self.finder.pool
            ranks_by_node = RankDiscovery(
                pool.sessions, pool.inbox, self.spec.lost_s
            ).ranks_by_node(self.plan.nodes)
            nodes = (replace(s, ranks=ranks_by_node.get(s.node, ())) for s in self.plan.nodes)
            self.plan = replace(self.plan, nodes=tuple(nodes))

    def _count_output(self, show: OutputSink) -> OutputSink:
        def show_and_count(node: str, rank: int, stream: str, data: bytes) -> None:
            self.has_output = True
            show(node, rank, stream, data)
            if self.console.reader_gone:
                self.finder.pool.inbox.put((None, Frame("signal", {"signal": signal.SIGPIPE})))

        return show_and_count

    def _on_log(self, node: str, source: str, stream: str, offset: int, data: bytes) -> None:
        self.store.write_log(node, local_log_name(self.plan.attempt, source, stream), offset, data)
        self._stall_reporter.on_log(source)
        self._show_log(node, source, stream, offset, data)

    def _on_event(self, event: Event) -> None:
        self.store.append_once(event)
        if not self.already_ended:
            self._stall_reporter.on_event(event)

    def _show_log(self, node: str, source: str, stream: str, _: int, data: bytes) -> None:
        if is_rank_source(source):
            self.console.rank_output(node, source_rank(source), stream, data)
        if self.console.reader_gone:
            self.finder.pool.inbox.put((None, Frame("signal", {"signal": signal.SIGPIPE})))

    def _verdict(self, monitor: AttemptMonitor) -> Verdict:
        info = self.record.info
        return fold_events(
            self.plan, monitor.timed_events, monitor.duration(info.launched_at), info.past_attempts
        )

    def _write_result(self, verdict: Verdict) -> None:
        if not (self.already_ended and self.store.has_result) and not self._outcome_unknown:
            self.store.write_result(self.plan, verdict, self.record.info.launched_at)

    def _print_report(self, verdict: Verdict, download_report: str, *, detached: bool) -> None:
        text = report.final_report(
            self.plan,
            verdict,
            self.store.display_path,
            self.store.tail,
            disconnect_s=0 if detached else self.spec.disconnect_s,
            cluster_selector=self.cluster_selector,
        )
        self.console.verdict("\n".join(filter(None, (download_report, text))))


def _to_rank_log(show: OutputSink) -> Callable[[str, str, str, int, bytes], None]:
    return lambda node, source, stream, _, data: show(node, source_rank(source), stream, data)


def _leave_on_signal(monitor: AttemptMonitor) -> list[int]:
    """Have every signal end that watch, and nothing else; return where they are noted."""
    signals: list[int] = []

    def leave(signum: int) -> bool:
        signals.append(signum)
        monitor.leave()
        return False

    monitor.on_interrupt = leave
    return signals


class DetachPrompt:
    """What Ctrl-C means to somebody who only joined: on a terminal they are asked."""

    def __init__(self, monitor: AttemptMonitor, inbox: Inbox, console: Console) -> None:
        self._monitor, self._inbox, self._console = monitor, inbox, console
        self._has_asked = self._stop_requested = False

    def __call__(self, signum: int) -> bool:
        """Return whether the watch is to take the signal as a launch does."""
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
        self._console.message(DETACH_QUESTION)
        self._console.phase(DETACH_QUESTION)  # which stays in sight while the ranks go on talking
        threading.Thread(target=self._read_answer, daemon=True, name="question").start()
        return False

    def _read_answer(self) -> None:
        line = ""
        with contextlib.suppress(OSError, ValueError):
            line = sys.stdin.readline()
        self._stop_requested = line.strip().lower() in ("s", "stop")
        word = (
            "stop" if self._stop_requested else "detach" if line else "leave"
        )  # no answer decides nothing
        self._inbox.put((None, Frame("prompt_answer", {"command": word})))
