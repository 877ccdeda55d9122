"""Where the ranks of a run are: equal stacks as one, the odd ones first, and who waits for whom."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from runner.core.errors import Problem
from runner.core.outcome.diagnosis import pictured
from runner.core.outcome.stacks import Frame, Group, Picture, Stack, parse, sentence
from runner.core.planning.build_plan import Plan
from runner.core.protocol.events import Ended, Event, Moving, Stalled
from runner.core.protocol.paths import STACKS
from runner.core.text import readable, spans
from runner.ui.node_names import fold_names

INNERMOST, OUTERMOST = 8, 3
"""So many frames of a stack are shown."""


def render(shown: Picture, silent: Sequence[Problem] = ()) -> str:
    """Return the stacks of all ranks for a person; `silent` is what kept hosts from theirs."""
    lines = [readable(said)] if (said := sentence(shown)) else []
    for group in shown.groups:
        lines += _shown(shown, group)
    lines += [f"{problem.where}: {problem.what}" for problem in silent]
    return "\n".join(lines)


def as_data(run_id: str, shown: Picture, silent: Sequence[Problem]) -> dict[str, Any]:
    """Return it as a program can read it."""
    return {
        "run_id": run_id,
        "says": sentence(shown),
        "groups": [
            {
                "ranks": group.ranks,
                "waits_in": group.waits,
                "program": group.stack.program,
                "by": group.stack.how,
                "frames": [dataclasses.asdict(frame) for frame in group.stack.frames],
            }
            for group in shown.groups
        ],
        "ended": shown.ended,
        "unknown": shown.unknown,
        "silent": {problem.where: problem.what for problem in silent},
    }


def _shown(shown: Picture, group: Group) -> list[str]:
    nodes = fold_names(shown.nodes[rank] for rank in group.ranks if rank in shown.nodes)
    title = f"{spans(group.ranks)} on {nodes}"
    frames = group.stack.frames
    if not frames:
        return [f"  {title}, {readable(group.stack.program)}: {readable(group.stack.how)}"]
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
            self._stalled[event.node] = body
        elif isinstance(body, Moving) and self._stalled:
            self._stalled.clear()
            if self._told:
                self._say(f"the run moves again ({event.node} saw it first)")
            self._told = False
        elif isinstance(body, Ended):
            self._over.add(event.node)
        self.look()

    def look(self) -> None:
        """Show where all ranks are, if all that is known by now."""
        nodes = [share.node for share in self._plan.nodes if share.node not in self._over]
        if self._told or not self._stalled or not set(nodes) <= self._stalled.keys():
            return
        told: dict[str, Sequence[Stack]] = {}
        for node, stalled in self._stalled.items():
            if stalled.dump:
                found = [dump for dump in parse(self._stacks(node)) if dump.when == stalled.dump]
                if not found or not found[-1].whole:
                    return
                told[node] = found[-1].stacks
        self._told = True
        first = next(iter(self._stalled.values()))
        then = "; the run is stopped for it" if first.stops else ""
        self._say(f"nothing of the run has moved for {first.seconds:.0f} s{then}")
        silent = [Problem(node, s.problem) for node, s in self._stalled.items() if s.problem]
        self._say(render(pictured(self._plan, told), silent))

    def log(self, source: str) -> None:
        """Take that a log came on."""
        if source == STACKS:
            self.look()
