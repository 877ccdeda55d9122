"""Reporters of an attempt under way to the console and the record."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from runner.control.record.run_store import RunStore
from runner.control.run.hosts import Console
from runner.core.errors import Problem
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

RenderStacks = Callable[[StackReport, Sequence[Problem]], str]


class StallReporter:
    """Reports a stalled run, once the stacks of all its hosts are in their logs `stacks`."""

    def __init__(
        self,
        plan: Plan,
        message: Callable[[str], None],
        read_stacks: Callable[[str], str],
        render: RenderStacks,
    ) -> None:
        self._plan = plan
        self._render = render
        self._message = message
        self._read_stacks = read_stacks
        self._stalled: dict[str, Stalled] = {}
        self._running_nodes = {share.node for share in plan.nodes}
        self._is_reported = False

    def on_event(self, event: Event) -> None:
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
        self._message(self._render(groups, unreachable))


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
        render_stacks: RenderStacks,
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
            self._stalls = StallReporter(plan, console.message, read_stacks, render_stacks)

    def record(self, event: Event) -> None:
        if self._store:
            self._store.append(event)
        if self._stalls:
            self._stalls.on_event(event)
        self._on_event(event)

    def log(self, node: str, source: str, stream: str, offset: int, data: bytes) -> None:
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
