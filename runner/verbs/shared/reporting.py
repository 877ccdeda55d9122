"""Reporting of a run to the console and the record: each attempt as it goes on, and the end."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.record.download import pull
from runner.control.record.run_store import RunStore
from runner.core.errors import Interrupted, NotReady, Problem
from runner.core.model.plan import Plan
from runner.core.model.results import PullResult
from runner.core.outcome.diagnosis import Diagnosis
from runner.core.outcome.stacks import Stack, group_stacks, is_stall, parse_dumps
from runner.core.outcome.tracebacks import find_tracebacks
from runner.core.outcome.verdict import Verdict
from runner.core.protocol.events import Ended, Event, ProgressResumed, Stalled
from runner.core.protocol.paths import (
    METRICS_STREAM,
    STACKS_LOG,
    is_rank_source,
    local_log_name,
    source_rank,
)
from runner.core.protocol.remote_files import LOG, OUTPUT, SAMPLES
from runner.core.shell import this_program
from runner.ui.console.console import Console
from runner.ui.layout import fold_names
from runner.ui.problems import render_problems
from runner.ui.reports import report, tables
from runner.verbs.shared.host_pool import FLUSH_TIMEOUT_S, HostPool

EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: |$)")
"""The first line of an exception, not one from the middle of a long text."""

LIMIT_S = 10.0
"""How long an end waits for samples, and for logs that a reader joined too late to see."""

PATIENCE_S = 3.0
OUTPUTS_PATIENCE_S = 10.0
"""A host that sends nothing for so long is not waited for; `pull` brings the rest."""


class StallReporter:
    """Reports a stalled run, once the stacks of all its hosts are in their logs `stacks`."""

    def __init__(
        self, plan: Plan, message: Callable[[str], None], read_stacks: Callable[[str], str]
    ) -> None:
        self._plan = plan
        self._message = message
        self._read_stacks = read_stacks
        self._stalled: dict[str, Stalled] = {}
        self._running_nodes = {share.node for share in plan.nodes}
        self._is_reported = False

    def on_event(self, event: Event) -> None:
        """Handle an event."""
        body = event.body
        if isinstance(body, Stalled):
            self._stalled[event.node] = body
        elif isinstance(body, ProgressResumed):
            # Only of its own: another host may have missed a short progress, and will not report
            # its stall again, or has already reported a later one.
            self._stalled.pop(event.node, None)
            if self._is_reported:
                self._message(f"the run makes progress again (first seen on {event.node})")
            self._is_reported = False
        elif isinstance(body, Ended):
            self._running_nodes.discard(event.node)
        self.report_if_complete()

    def report_if_complete(self) -> None:
        """Show the stacks of all ranks if they are complete."""
        if self._is_reported or not self._stalled or self._running_nodes - self._stalled.keys():
            return
        stacks_by_node: dict[str, Sequence[Stack]] = {}
        for node, stall in self._stalled.items():
            if not stall.dump_time:
                continue
            log = self._read_stacks(node)
            dumps = [dump for dump in parse_dumps(log) if dump.time == stall.dump_time]
            if not dumps:
                return
            stacks_by_node[node] = dumps[-1].stacks
        self._is_reported = True
        first = next(iter(self._stalled.values()))
        consequence = "; the run is being stopped" if first.stops_run else ""
        self._message(f"no progress on any rank for {first.seconds:.0f} s{consequence}")
        unreachable = [Problem(node, s.problem) for node, s in self._stalled.items() if s.problem]
        groups = group_stacks(self._plan, stacks_by_node)
        self._message(tables.render_stacks(groups, unreachable))


class AttemptReporter:
    """Shows what the ranks of an attempt write, and records all of it.

    Without a `store`, another process writes the record; else the stacks of a run that makes no
    progress are shown, too.
    `on_reader_gone` is called when the console's reader has closed it, and `on_event` with each
    event.
    """

    def __init__(
        self,
        plan: Plan,
        console: Console,
        store: RunStore | None,
        *,
        report_stalls: bool = True,
        on_reader_gone: Callable[[], None] = lambda: None,
        on_event: Callable[[Event], None] = lambda _: None,
    ) -> None:
        self._plan = plan
        self._console = console
        self._store = store
        self._on_reader_gone = on_reader_gone
        self._on_event = on_event
        self._stalls: StallReporter | None = None
        console.begin_attempt(plan.progress_pattern, plan.work_folders)
        if store and report_stalls:
            read_stacks = functools.partial(store.stacks, plan.attempt)
            self._stalls = StallReporter(plan, console.message, read_stacks)

    def record(self, event: Event) -> None:
        """Take an event."""
        if self._store:
            self._store.append(event)
        if self._stalls:
            self._stalls.on_event(event)
        self._on_event(event)

    def log(self, node: str, source: str, stream: str, offset: int, data: bytes) -> None:
        """Take a piece of a log."""
        if self._store:
            name = local_log_name(self._plan.attempt, source, stream)
            self._store.write_log(node, name, offset, data)
        if self._stalls and source == STACKS_LOG:
            self._stalls.report_if_complete()
        if is_rank_source(source) and stream == METRICS_STREAM:
            self._console.rank_metrics(node, source_rank(source), data)
        elif is_rank_source(source):
            self._console.rank_output(node, source_rank(source), stream, data)
        if self._console.reader_gone:
            self._on_reader_gone()


@dataclass(frozen=True)
class Ending:
    """Where the end of a run is reported; a verb finds the run again by `run_flags`."""

    console: Console
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
        self.console.flush_ranks(FLUSH_TIMEOUT_S)
        diagnosis = self.store.diagnose(plan, verdict)
        if launched_at is not None:
            self.store.write_result(plan, verdict, launched_at, diagnosis)
        if needs_logs:
            self.store.unlock()
            with contextlib.suppress(Interrupted, NotReady):
                self._download(plan, (LOG,), LIMIT_S, PATIENCE_S)
            diagnosis = self.store.diagnose(plan, verdict)
        if failure := self.store.write_error:
            self.console.message(f"{failure}; the hosts have every log, in their workdir")
        # Supervisors that were not reached wait that long for a controller.
        disconnect_s = 0 if monitor.peer_status.detached else self.pool.spec.disconnect_s
        text = report.final_report(
            plan,
            verdict,
            self.store.display_path,
            self._without_shown(verdict, diagnosis),
            run_flags=self.run_flags,
            disconnect_s=disconnect_s,
            rerun=self.store.rerun_without_lost(plan, verdict),
        )
        self.console.verdict(text)
        return diagnosis

    def _without_shown(self, verdict: Verdict, diagnosis: Diagnosis | None) -> Diagnosis | None:
        """Return the diagnosis without what stands just above: stacks, a traceback's lines."""
        if not (diagnosis and verdict.first_failure):
            return diagnosis
        if is_stall(verdict.first_failure.reason):
            is_shown = self.console.has_just_shown("", [diagnosis.meaning])
            return replace(diagnosis, excerpt=()) if is_shown else diagnosis
        quoted = [line for line in diagnosis.excerpt if not line.startswith("  … ")]
        exceptions = [each.exception for each in find_tracebacks(diagnosis.excerpt)]
        named = exceptions[-1][:1] if exceptions else ()
        is_named = named and EXCEPTION.match(named[0])
        if is_named and self.console.has_just_shown(verdict.first_failure.node, quoted):
            return replace(diagnosis, context=(), excerpt=named)
        return diagnosis

    def fetch(self, plan: Plan, monitor: AttemptMonitor, kinds: Collection[str]) -> None:
        """Bring what the verdict did not need: these kinds, metrics and samples."""
        if problem := self.store.record_metrics(plan):
            self.console.message(f"note: {problem}")
        self.store.unlock()
        if kinds and (told := self._fetched(plan, kinds)):
            self.console.message(told)
        if any(node.order.sample_s for node in plan.nodes):
            limit_s = PATIENCE_S if monitor.interrupted else LIMIT_S
            with contextlib.suppress(Interrupted, NotReady):  # they stay on the hosts for `pull`
                self._download(plan, (SAMPLES,), limit_s, PATIENCE_S)

    def _download(
        self, plan: Plan, kinds: Collection[str], limit_s: float, patience_s: float
    ) -> dict[str, PullResult]:
        run_id = plan.run_id
        folder = self.store.folder
        return download(self.pool, run_id, folder, kinds, limit_s=limit_s, patience_s=patience_s)

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
        self.console.flush_ranks(FLUSH_TIMEOUT_S)
        text = report.detach_notice(
            plan,
            self.run_flags,
            is_detached=monitor.peer_status.all_detached,
            is_stopping=is_stopping,
            hub_unreachable=monitor.peer_status.hub_unreachable,
        )
        self.console.verdict(text)


def download(
    pool: HostPool,
    run_id: str,
    folder: Path,
    kinds: Collection[str],
    *,
    nodes: Container[str] | None = None,
    limit_s: float = math.inf,
    patience_s: float = math.inf,
) -> dict[str, PullResult]:
    """Download from the nodes that are connected, or those of `nodes` among them."""
    pool.console.phase("fetching")
    sessions = {
        name: session
        for name, session in pool.sessions.items()
        if not session.closed and (nodes is None or name in nodes)
    }
    return pull(
        sessions,
        pool.inbox,
        run_id,
        folder,
        lost_s=pool.spec.lost_s,
        show=pool.console.node_status,
        kinds=kinds,
        limit_s=limit_s,
        patience_s=patience_s,
    )
