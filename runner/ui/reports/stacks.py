"""Where the ranks of a run are: equal stacks as one, the odd ones first, and who waits for whom."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from runner.core.errors import Problem
from runner.core.model.plan import Plan
from runner.core.outcome.diagnosis import group_run_stacks
from runner.core.outcome.stacks import Frame, Stack, StackGroup, StackReport, parse_dumps, summary
from runner.core.protocol.events import Ended, Event, ProgressResumed, Stalled
from runner.core.protocol.paths import STACKS_LOG
from runner.core.text import format_ranges, printable
from runner.ui.node_names import fold_names
from runner.ui.reports.columns import align

INNERMOST, OUTERMOST = 8, 3
"""So many frames of a stack are shown."""


def render(report: StackReport, unreachable: Sequence[Problem] = ()) -> str:
    """Return the stacks of all ranks for a person; `unreachable` is what kept hosts from theirs."""
    lines = [printable(text)] if (text := summary(report)) else []
    for group in report.groups:
        lines += _group_lines(report, group)
    lines += [f"{problem.subject}: {problem.message}" for problem in unreachable]
    return "\n".join(lines)


def as_data(run_id: str, report: StackReport, unreachable: Sequence[Problem]) -> dict[str, Any]:
    """Return it as a program can read it."""
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
    nodes = fold_names(
        report.node_of_rank[rank] for rank in group.ranks if rank in report.node_of_rank
    )
    title = f"{format_ranges(group.ranks)} on {nodes}"
    frames = group.stack.frames
    if not frames:
        return [f"  {title}, {printable(group.stack.program)}: {printable(group.stack.method)}"]
    rows = align([(printable(f.function), _location(f)) for f in frames], indent="    ")
    if len(rows) > INNERMOST + OUTERMOST + 1:
        left_out = len(rows) - INNERMOST - OUTERMOST
        rows[INNERMOST:-OUTERMOST] = [f"    … {left_out} more …"]
    return [f"  {title}, innermost first:", *rows]


def _location(frame: Frame) -> str:
    return f"{printable(frame.file)}:{frame.line}" if frame.line else printable(frame.file)


class StallReporter:
    """Tells a person of a run in which nothing moves, once the stacks of all its hosts are here.

    Args:
        plan: The run.
        say: Says something to the person.
        stacks: Returns what stands in a node's log `stacks` so far.
    """

    def __init__(
        self, plan: Plan, message: Callable[[str], None], read_stacks: Callable[[str], str]
    ) -> None:
        self._plan, self._message, self._read_stacks = plan, message, read_stacks
        self._stalled: dict[str, Stalled] = {}
        self._ended_nodes: set[str] = set()
        self._is_reported = False

    def on_event(self, event: Event) -> None:
        """Take what happened."""
        body = event.body
        if isinstance(body, Stalled):
            self._stalled[event.node] = body
        elif isinstance(body, ProgressResumed) and self._stalled:
            self._stalled.clear()
            if self._is_reported:
                self._message(f"the run moves again ({event.node} saw it first)")
            self._is_reported = False
        elif isinstance(body, Ended):
            self._ended_nodes.add(event.node)
        self.report_if_complete()

    def report_if_complete(self) -> None:
        """Show where all ranks are, if all that is known by now."""
        nodes = [share.node for share in self._plan.nodes if share.node not in self._ended_nodes]
        if self._is_reported or not self._stalled or not set(nodes) <= self._stalled.keys():
            return
        stacks_by_node: dict[str, Sequence[Stack]] = {}
        for node, stall in self._stalled.items():
            if stall.dump_time:
                dumps = [
                    dump
                    for dump in parse_dumps(self._read_stacks(node))
                    if dump.time == stall.dump_time
                ]
                if not dumps or not dumps[-1].is_complete:
                    return
                stacks_by_node[node] = dumps[-1].stacks
        self._is_reported = True
        first = next(iter(self._stalled.values()))
        consequence = "; the run is stopped for it" if first.stops_run else ""
        self._message(f"no progress on any rank for {first.seconds:.0f} s{consequence}")
        unreachable = [Problem(node, s.problem) for node, s in self._stalled.items() if s.problem]
        self._message(render(group_run_stacks(self._plan, stacks_by_node), unreachable))

    def on_log(self, source: str) -> None:
        """Take that a log came on."""
        if source == STACKS_LOG:
            self.report_if_complete()
