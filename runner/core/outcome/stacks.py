"""Stacks: the Python stacks of a run's ranks, parsed from logs and grouped.

A host appends each dump to its log `stacks`: a header, then every process with its main thread in
the form of CPython's `faulthandler`, and a last line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from runner.core.wire.paths import DUMP_END, PRELOAD_PACKAGE
from runner.core.wire.plan import Plan
from runner.core.wire.text import format_ranges

_DUMP = re.compile(r"=== stacks, (\S+): ")
_PROCESS = re.compile(r"--- rank (\d{1,9}): process \d{1,9} \((.*)\), by (.*)")
_STACK = re.compile(r"^(?:Current thread|Stack) .*\(most recent call first\):", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)', re.MULTILINE)

_PACKAGE = re.compile(r".*/(site|dist)-packages/")  # as pip installs it, or Debian and Ubuntu
_STDLIB = re.compile(r"(^|/)lib(64)?/python3\.\d+t?/(?!(site|dist)-packages/)")
_TORCH = re.compile(r"(^|/)torch/")
_COLLECTIVES = re.compile(
    r"(^|/)torch/distributed/(distributed_c10d|_functional_collectives|rendezvous)\.py"
)  # where a rank waits for others, or talks to them
_WRAPPERS = re.compile(r"(^|/)torch/(distributed/c10d_logger|_ops)\.py")
_WRAPPER_FUNCTIONS = ("wrapper", "<module>", "__call__")
_BACKWARD = "_engine_run_backward"  # of autograd, in which DDP reduces gradients
_OF_PRELOAD = re.compile(rf"/runs/[^/]+/[^/]+/(preload|{PRELOAD_PACKAGE}/\w+)\.py$")
"""The frames below the program of a forked rank."""


@dataclass(frozen=True)
class Frame:
    """One call; `line` is 0 if unknown."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@dataclass(frozen=True)
class Stack:
    """The stack of one process of a rank."""

    rank: int
    program: str
    method: str  # what read the stack, or why there is none
    frames: tuple[Frame, ...] = ()  # of its main thread, innermost first


class StackDump(NamedTuple):
    """One dump of a host, at its own `time` (ISO 8601)."""

    time: str
    stacks: list[Stack]


@dataclass(frozen=True)
class StackGroup:
    """Ranks whose main threads have the same stack."""

    ranks: tuple[int, ...]
    stack: Stack

    @property
    def collective(self) -> str:
        """The collective that they are in: the outermost call of torch's, "" for none.

        The innermost call has to be one that waits: a rank that computes in a wrapper does not.
        """
        operation = ""
        for frame in self.stack.frames:
            if _COLLECTIVES.search(frame.file):
                if not operation or frame.function not in _WRAPPER_FUNCTIONS:
                    operation = frame.function
            elif frame.function == _BACKWARD:
                return operation or "backward"
            elif _WRAPPERS.search(frame.file):
                continue
            elif operation or not _STDLIB.search(frame.file):  # ranks may wait in `threading`
                break
        return operation

    @property
    def user_call(self) -> Frame | None:
        """The innermost call that is neither torch's nor Python's own."""
        for frame in self.stack.frames:
            if not _TORCH.search(frame.file) and not _STDLIB.search(frame.file):
                return frame
        return None


@dataclass(frozen=True)
class StackReport:
    """The stacks of a whole run at one moment."""

    groups: tuple[StackGroup, ...]  # the rarest first, those that wait for others last
    ended: tuple[int, ...]  # ranks that have no process any more
    unknown: tuple[int, ...]  # ranks of hosts that sent no stacks
    node_of_rank: Mapping[int, str]


def parse_dumps(text: str) -> list[StackDump]:
    """Return the dumps that have arrived whole in a host's log; other lines are skipped."""
    dumps: list[StackDump] = []
    for block in re.split(r"^(?==== stacks, )", text, flags=re.MULTILINE):
        header = _DUMP.match(block)
        if header and block.endswith(DUMP_END):
            dumps.append(StackDump(header[1], _stacks(block)))
    return dumps


def _stacks(block: str) -> list[Stack]:
    stacks: list[Stack] = []
    for part in re.split(r"^(?=--- rank )", block, flags=re.MULTILINE):
        header = _PROCESS.match(part)
        if header:
            stack = Stack(
                rank=int(header[1]),
                program=header[2],
                method=header[3],
                frames=_frames(part),
            )
            stacks.append(stack)
    return stacks


def _frames(text: str) -> tuple[Frame, ...]:
    """Return the frames of the main thread; of several dumps of a process, those of the last."""
    calls = _FRAME.findall(_STACK.split(text)[-1])
    frames = (Frame(file, int(n) if n.isdigit() else 0, function) for file, n, function in calls)
    return tuple(frame for frame in frames if not _OF_PRELOAD.search(frame.file))


def group_stacks(plan: Plan, stacks_by_node: Mapping[str, Sequence[Stack]]) -> StackReport:
    """Return the stacks of a whole run as one report: of each rank the first process.

    No host is heard on another's ranks. Paths below the working folders of ranks are shortened.
    """
    node_of_rank = plan.node_of_rank or {
        stack.rank: node for node, stacks in stacks_by_node.items() for stack in stacks
    }
    folders = [node_plan.cwd for node_plan in plan.nodes]
    first: dict[int, Stack] = {}
    for node, stacks in stacks_by_node.items():
        for stack in stacks:
            if node_of_rank.get(stack.rank) == node:
                first.setdefault(stack.rank, stack)
    groups: dict[object, StackGroup] = {}
    for rank, stack in sorted(first.items()):
        frames = tuple(_shorten_path(frame, folders) for frame in stack.frames)
        key = frames or (stack.program, stack.method)
        group = groups.get(key, StackGroup((), replace(stack, frames=frames)))
        groups[key] = replace(group, ranks=(*group.ranks, rank))
    unknown = [rank for rank, node in node_of_rank.items() if node not in stacks_by_node]
    return StackReport(
        groups=tuple(sorted(groups.values(), key=lambda g: (bool(g.collective), len(g.ranks)))),
        ended=tuple(rank for rank in node_of_rank if rank not in first and rank not in unknown),
        unknown=tuple(unknown),
        node_of_rank=node_of_rank,
    )


def _shorten_path(frame: Frame, folders: Sequence[str]) -> Frame:
    package = _PACKAGE.match(frame.file)
    stdlib = _STDLIB.search(frame.file)
    start = 0
    if package:
        start = package.end()
    elif stdlib:
        start = stdlib.start()
    else:
        start = next((len(f) for f in folders if frame.file.startswith(f"{f}/")), 0)
    return replace(frame, file=frame.file[start:].lstrip("/")) if start else frame


def summary(report: StackReport) -> str:
    """Return which ranks wait for which, or where the odd ones are, as one sentence."""
    waiting: dict[str, list[int]] = {}
    for group in report.groups:
        if group.collective:
            waiting[group.collective] = sorted([*waiting.get(group.collective, []), *group.ranks])
    waits: list[str] = []
    for operation, ranks in waiting.items():
        verb = "waits" if len(ranks) == 1 else "wait"
        waits.append(f"{format_ranges(ranks)} {verb} in {operation}")
    others = [_describe(group, report) for group in report.groups if not group.collective]
    if report.ended:
        verb = "has" if len(report.ended) == 1 else "have"
        others.append(f"{with_nodes(report.ended, report.node_of_rank)}, which {verb} ended")
    if report.unknown:
        others.append(f"{with_nodes(report.unknown, report.node_of_rank)}, which sent no stacks")
    if not waiting:
        return ", and ".join(other.replace(", which ", " ", 1) for other in others[:3])
    text = " and ".join(waits)
    if others:
        return f"{text} for {' and '.join(others[:3])}"
    if len(waiting) > 1:
        return f"{text}: they do not agree on which collective comes next"
    if len({group.user_call for group in report.groups}) > 1:
        return f"{text}, called from different places: one may be a call ahead of the others"
    cause = "if they stay there, the network between them, or the sizes they pass, differ"
    return f"{text}, all at the same place: {cause}"


def _describe(group: StackGroup, report: StackReport) -> str:
    who = with_nodes(group.ranks, report.node_of_rank)
    if not group.stack.frames:
        return f"{who} ({group.stack.method})"
    verb = "is" if len(group.ranks) == 1 else "are"
    inner = group.stack.frames[0]
    if group.user_call in (None, inner):
        return f"{who}, which {verb} in {inner}"
    return f"{who}, which {verb} in {inner.function}, called in {group.user_call}"


def with_nodes(ranks: Sequence[int], node_of_rank: Mapping[int, str]) -> str:
    """Return ranks as text, with their node if all are on one."""
    names = {node_of_rank.get(rank, "") for rank in ranks}
    return f"{format_ranges(ranks)} on {names.pop()}" if len(names) == 1 else format_ranges(ranks)
