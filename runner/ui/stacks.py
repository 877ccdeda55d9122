"""Where the ranks of a run are: equal stacks as one, the odd ones first, and who waits for whom."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from runner.core.errors import Problem
from runner.core.events import Ended, Event, Moving, Stalled
from runner.core.layout import STACKS
from runner.core.plan import Plan
from runner.core.stacks import Frame, Group, Stack, grouped, parse, sentence, shortened
from runner.core.text import readable, spans
from runner.ui.names import fold_names

INNERMOST, OUTERMOST = 8, 3
"""So many frames of a stack are shown."""


def render(plan: Plan, stacks: Sequence[Stack], silent: Sequence[Problem] = ()) -> str:
    """Return the stacks of all ranks for a person.

    Args:
        plan: The run.
        stacks: What every host said.
        silent: What kept others from it.
    """
    groups, missing = _grouped(plan, stacks, silent)
    lines = [readable(said)] if (said := sentence(groups, missing, plan.node_of_rank)) else []
    for group in groups:
        lines += _shown(plan, group)
    if missing and not said:
        lines.append(f"{spans(missing)}: no process, {'it' if len(missing) == 1 else 'they'} ended")
    lines += [f"{problem.where}: {problem.what}" for problem in silent]
    return "\n".join(lines)


def as_data(plan: Plan, stacks: Sequence[Stack], silent: Sequence[Problem]) -> dict[str, Any]:
    """Return it as a program can read it."""
    groups, missing = _grouped(plan, stacks, silent)
    return {
        "run_id": plan.run_id,
        "says": sentence(groups, missing, plan.node_of_rank),
        "groups": [
            {
                "ranks": group.ranks,
                "waits_in": group.waits,
                "program": group.stack.program,
                "by": group.stack.how,
                "frames": [dataclasses.asdict(frame) for frame in group.stack.frames],
            }
            for group in groups
        ],
        "ended": missing,
        "silent": {problem.where: problem.what for problem in silent},
    }


def _grouped(
    plan: Plan, stacks: Sequence[Stack], silent: Sequence[Problem]
) -> tuple[list[Group], list[int]]:
    """Return the groups, and the ranks that have no process although their host answered."""
    folders = [share.cwd for share in plan.nodes]
    groups = grouped(shortened(stack, folders) for stack in stacks)
    told = {rank for group in groups for rank in group.ranks}
    away = {problem.where for problem in silent}
    asked = [rank for share in plan.nodes if share.node not in away for rank in share.ranks]
    return groups, [rank for rank in asked if rank not in told]


def _shown(plan: Plan, group: Group) -> list[str]:
    nodes = fold_names(s.node for s in plan.nodes if set(s.ranks) & set(group.ranks))
    title = f"{spans(group.ranks)} on {nodes}"
    frames = group.stack.frames
    if not frames:
        return [f"{title}: {readable(group.stack.program)}, {readable(group.stack.how)}"]
    width = max(len(frame.function) for frame in frames)
    rows = [f"    {readable(f.function):{width}}  {_place(f)}" for f in frames]
    if len(rows) > INNERMOST + OUTERMOST + 1:
        left_out = len(rows) - INNERMOST - OUTERMOST
        rows[INNERMOST:-OUTERMOST] = [f"    … {left_out} more …"]
    return [f"  {title}, innermost first:", *rows]


def _place(frame: Frame) -> str:
    return f"{readable(frame.file)}:{frame.line}" if frame.line else readable(frame.file)


class Standstill:
    """Tells a person of a run in which nothing moves, once the stacks of all its hosts are here.

    Args:
        plan: The run.
        say: Says something to the person.
        stacks: Returns what stands in a node's log `stacks` so far.
    """

    def __init__(
        self, plan: Plan, say: Callable[[str], None], stacks: Callable[[str], str]
    ) -> None:
        self._plan, self._say, self._stacks = plan, say, stacks
        self._stalled: dict[str, Stalled] = {}
        self._over: set[str] = set()
        self._told = False

    def heard(self, event: Event) -> None:
        """Take what happened."""
        body = event.body
        if isinstance(body, Stalled):
            if not self._stalled:
                then = "; the run is stopped for it" if body.stops else ""
                self._say(f"nothing of the run has moved for {body.seconds:.0f} s{then}")
            self._stalled[event.node] = body
        elif isinstance(body, Moving) and self._stalled:
            self._stalled.clear()
            self._told = False
            self._say(f"the run moves again ({event.node} saw it first)")
        elif isinstance(body, Ended):
            self._over.add(event.node)
        self.look()

    def look(self) -> None:
        """Show where all ranks are, if all that is known by now."""
        nodes = [share.node for share in self._plan.nodes if share.node not in self._over]
        if self._told or not self._stalled or not set(nodes) <= self._stalled.keys():
            return
        dumps = {node: parse(self._stacks(node)) for node in self._stalled}
        whole = all(dumps[node] or self._stalled[node].problem for node in self._stalled)
        if whole:
            self._told = True
            stacks = [stack for found in dumps.values() if found for stack in found[-1].stacks]
            silent = [Problem(node, s.problem) for node, s in self._stalled.items() if s.problem]
            self._say(render(self._plan, stacks, silent))

    def log(self, source: str) -> None:
        """Take that a log came on."""
        if source == STACKS:
            self.look()
