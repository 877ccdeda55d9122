"""The report of ranks' stacks, with equal ones merged and the exceptions first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from runner.core.errors import Problem
from runner.core.model.plan import Plan
from runner.core.outcome.stacks import (
    Stack,
    StackGroup,
    StackReport,
    group_run_stacks,
    parse_dumps,
    summary,
)
from runner.core.protocol.events import Ended, Event, ProgressResumed, Stalled
from runner.core.protocol.paths import STACKS_LOG
from runner.core.text import format_ranges, printable
from runner.ui.layout import align, fold_names

INNERMOST, OUTERMOST = 8, 3  # the number of frames shown at either end of a stack


def render(report: StackReport, unreachable: Sequence[Problem] = ()) -> str:
    """Return the stacks of all ranks; `unreachable` are the problems of hosts without any."""
    lines = [printable(text)] if (text := summary(report)) else []
    for group in report.groups:
        lines += _group_lines(report, group)
    lines += [f"{problem.subject}: {problem.message}" for problem in unreachable]
    return "\n".join(lines)


def as_data(run_id: str, report: StackReport, unreachable: Sequence[Problem]) -> dict[str, Any]:
    """Return the report as data for a program."""
    return {
        "run_id": run_id,
        "says": summary(report),
        "groups": [
            {
                "ranks": group.ranks,
                "waits_in": group.collective,
                "program": group.stack.program,
                "by": group.stack.method,
                "frames": [dataclasses.asdict(frame) for frame in group.stack.frames],
            }
            for group in report.groups
        ],
        "ended": report.ended,
        "unknown": report.unknown,
        "silent": {problem.subject: problem.message for problem in unreachable},
    }


def _group_lines(report: StackReport, group: StackGroup) -> list[str]:
    nodes = report.node_of_rank
    names = fold_names(nodes[rank] for rank in group.ranks if rank in nodes)
    title = f"{format_ranges(group.ranks)} on {names}"
    frames = group.stack.frames
    if not frames:
        return [f"  {title}, {printable(group.stack.program)}: {printable(group.stack.method)}"]
    locations = [f"{f.file}:{f.line}" if f.line else f.file for f in frames]
    pairs = zip(frames, locations, strict=True)
    rows = align([(printable(f.function), printable(at)) for f, at in pairs], indent="    ")
    if len(rows) > INNERMOST + OUTERMOST + 1:
        left_out = len(rows) - INNERMOST - OUTERMOST
        rows[INNERMOST:-OUTERMOST] = [f"    … {left_out} more …"]
    return [f"  {title}, innermost first:", *rows]


class StallReporter:
    """Reports a stalled run, once the stacks of all its hosts are in their logs `stacks`."""

    def __init__(
        self, plan: Plan, message: Callable[[str], None], read_stacks: Callable[[str], str]
    ) -> None:
        self._plan, self._message, self._read_stacks = plan, message, read_stacks
        self._stalled: dict[str, Stalled] = {}
        self._ended_nodes: set[str] = set()
        self._is_reported = False

    def on_event(self, event: Event) -> None:
        """Handle an event."""
        body = event.body
        if isinstance(body, Stalled):
            self._stalled[event.node] = body
        elif isinstance(body, ProgressResumed) and self._stalled:
            self._stalled.clear()
            if self._is_reported:
                self._message(f"the run makes progress again (first seen on {event.node})")
            self._is_reported = False
        elif isinstance(body, Ended):
            self._ended_nodes.add(event.node)
        self.report_if_complete()

    def report_if_complete(self) -> None:
        """Show the stacks of all ranks if they are complete."""
        nodes = [share.node for share in self._plan.nodes if share.node not in self._ended_nodes]
        if self._is_reported or not self._stalled or not set(nodes) <= self._stalled.keys():
            return
        stacks_by_node: dict[str, Sequence[Stack]] = {}
        for node, stall in self._stalled.items():
            if stall.dump_time:
                dumps = parse_dumps(self._read_stacks(node))
                dumps = [dump for dump in dumps if dump.time == stall.dump_time]
                if not dumps or not dumps[-1].is_complete:
                    return
                stacks_by_node[node] = dumps[-1].stacks
        self._is_reported = True
        first = next(iter(self._stalled.values()))
        consequence = "; the run is being stopped" if first.stops_run else ""
        self._message(f"no progress on any rank for {first.seconds:.0f} s{consequence}")
        unreachable = [Problem(node, s.problem) for node, s in self._stalled.items() if s.problem]
        self._message(render(group_run_stacks(self._plan, stacks_by_node), unreachable))

    def on_log(self, source: str) -> None:
        """Handle new content of a log."""
        if source == STACKS_LOG:
            self.report_if_complete()
