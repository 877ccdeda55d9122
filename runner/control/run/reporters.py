"""Reporters of an attempt under way to the console and the record."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner.control.record.run_store import RunStore
from runner.control.run.hosts import Console
from runner.core.errors import Problem
from runner.core.outcome.diagnosis import DUMP_LINES
from runner.core.outcome.stacks import Stack, StackReport, group_stacks, parse_dumps
from runner.core.wire.events import Ended, Event, ProgressResumed, Stalled
from runner.core.wire.paths import (
    METRICS_STREAM,
    STACKS_LOG,
    is_rank_source,
    local_log_name,
    source_rank,
)
from runner.core.wire.plan import Plan


class AttemptReporter:
    """Shows what the ranks of an attempt write, and records all of it.

    Without a `store`, another process writes the record; else the stacks of a run that makes no
    progress are shown, too, once they are in the logs of all its hosts.
    `on_reader_gone` is called when the console's reader has closed it, and `on_event` with each
    event.
    """

    def __init__(
        self,
        plan: Plan,
        console: Console,
        store: RunStore | None,
        render_stacks: Callable[[StackReport, Sequence[Problem]], str],
        *,
        report_stalls: bool = True,
        on_reader_gone: Callable[[], None] = lambda: None,
        on_event: Callable[[Event], None] = lambda _: None,
    ) -> None:
        self._plan = plan
        self._console = console
        self._store = store
        self._render_stacks = render_stacks
        self._report_stalls = report_stalls
        self._on_reader_gone = on_reader_gone
        self._on_event = on_event
        self._stalled: dict[str, Stalled] = {}
        self._running_nodes = {share.node for share in plan.nodes}
        self._is_reported = False  # a stall
        console.begin_attempt(plan.progress_pattern, plan.work_folders)

    def record(self, event: Event) -> None:
        body = event.body
        if self._store:
            self._store.append(event)
        if isinstance(body, Stalled):
            self._stalled[event.node] = body
        elif isinstance(body, ProgressResumed):
            # Only of its own: another host may have missed a short progress, and will not report
            # its stall again, or has already reported a later one.
            self._stalled.pop(event.node, None)
            if self._is_reported:
                where = f"first seen on {event.node}"
                self._console.message(f"the run makes progress again ({where})")
            self._is_reported = False
        elif isinstance(body, Ended):
            self._running_nodes.discard(event.node)
        self._report_stall()
        self._on_event(event)

    def log(self, node: str, source: str, stream: str, offset: int, data: bytes) -> None:
        if self._store:
            name = local_log_name(self._plan.attempt, source, stream)
            self._store.write_log(node, name, offset, data)
        if source == STACKS_LOG:
            self._report_stall()
        if is_rank_source(source) and stream == METRICS_STREAM:
            self._console.rank_metrics(node, source_rank(source), data)
        elif is_rank_source(source):
            self._console.rank_output(node, source_rank(source), stream, data)
        if self._console.reader_gone:
            self._on_reader_gone()

    def _report_stall(self) -> None:
        """Show the stacks of all ranks if they are complete."""
        if not (self._store and self._report_stalls and self._stalled) or self._is_reported:
            return
        if self._running_nodes - self._stalled.keys():
            return
        stacks_by_node: dict[str, Sequence[Stack]] = {}
        for node, stall in self._stalled.items():
            if not stall.dump_time:
                continue
            name = local_log_name(self._plan.attempt, STACKS_LOG, "out")
            lines = self._store.tail(node, name, DUMP_LINES)  # not all that a host may have sent
            dumps = parse_dumps("\n".join(lines) + "\n")
            dumps = [dump for dump in dumps if dump.time == stall.dump_time]
            if not dumps:
                return
            stacks_by_node[node] = dumps[-1].stacks
        self._is_reported = True
        first = next(iter(self._stalled.values()))
        consequence = "; the run is being stopped" if first.stops_run else ""
        message = f"no progress on any rank for {first.seconds:.0f} s{consequence}"
        self._console.message(message)
        unreachable = [Problem(node, s.problem) for node, s in self._stalled.items() if s.problem]
        groups = group_stacks(self._plan, stacks_by_node)
        self._console.message(self._render_stacks(groups, unreachable))
