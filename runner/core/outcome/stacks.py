"""Stacks: the Python stacks of a run's ranks, parsed from logs and grouped.

A host appends each dump to its log `stacks`: a header, then every process with its threads in the
form of CPython's `faulthandler`, and a last line.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from runner.core.model.plan import Plan
from runner.core.protocol.paths import PRELOAD_PACKAGE
from runner.core.text import format_ranges

STALL_REASON = "no rank made progress for"
"""The beginning of the reason for which a watchdog stops a run."""

DUMP_HEADER = "=== stacks, {when}: {why}\n"
DUMP_END = "=== end\n"
PROCESS_HEADER = "--- rank {rank}: process {pid} ({program}), by {how}\n"
USAGE_LINE = "    so far: {cpu_s:.2f} s of CPU, {printed} bytes printed\n"

_DUMP_LINE = re.compile(r"=== stacks, (\S+): (.*)")
_PROCESS_LINE = re.compile(r"--- rank (\d{1,9}): process (\d{1,9}) \((.*)\), by (.*)")
_USAGE_LINE = re.compile(r"    so far: (\d{1,12}\.\d\d) s of CPU, (\d{1,18}) bytes printed")
_THREAD_LINE = re.compile(r"(Current thread|Stack|Thread) .*\(most recent call first\):")
_FRAME_LINE = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)')

COLLECTIVE_FILES = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/rendezvous.py",
)
"""Files of torch in which a rank waits for other ranks, or talks to them."""

INTERMEDIATE_FILES = ("torch/distributed/c10d_logger.py", "torch/_ops.py")
"""Files between the user's call and those."""

WRAPPER_FUNCTIONS = frozenset(("wrapper", "<module>", "__call__"))
"""Functions of those files that are no collective."""


_PACKAGE = re.compile(r".*/(site|dist)-packages/")  # as pip installs it, or Debian and Ubuntu
_STDLIB = re.compile(r"(^|/)lib(64)?/python3\.\d+t?/(?!(site|dist)-packages/)")
_OF_PRELOAD = re.compile(rf"/runs/[^/]+/[^/]+/(preload|{PRELOAD_PACKAGE}/\w+)\.py$")
"""The frames below the program of a forked rank."""


def is_stall(reason: str) -> bool:
    """Return whether an attempt ended because no rank made progress.

    Every node shows a standstill: which host or rank noticed it says nothing.
    """
    return reason.startswith(STALL_REASON)


MIN_CPU_SHARE = 0.05
"""A process that uses less than this part of a core is only polling."""

BACKWARD_FUNCTION = "_engine_run_backward"
"""The function of autograd in which DDP reduces gradients."""


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
    pid: int
    program: str
    method: str  # what read the stack, or why there is none
    frames: Tuple[Frame, ...] = ()  # of its main thread, innermost first
    cpu_s: float = 0.0  # what it has used so far
    printed: int = 0  # bytes of its rank's output so far


@dataclass(frozen=True)
class StackDump:
    """One dump of a host, at its own `time` (ISO 8601); incomplete while the log still arrives."""

    time: str
    reason: str
    stacks: Tuple[Stack, ...]
    is_complete: bool = True


@dataclass(frozen=True)
class StackGroup:
    """Ranks whose main threads have the same stack."""

    ranks: Tuple[int, ...]
    stack: Stack

    @property
    def collective(self) -> str:
        """The collective that they are in, "" for none."""
        return blocking_collective(self.stack.frames)


def parse_dumps(text: str) -> List[StackDump]:
    """Return the dumps in a host's log; other lines are skipped."""
    dumps: List[StackDump] = []
    for block in re.split(r"^(?==== stacks, )", text, flags=re.MULTILINE):
        header = _DUMP_LINE.match(block)
        if header:
            is_complete = block.endswith(DUMP_END)
            dumps.append(StackDump(header[1], header[2], tuple(_processes(block)), is_complete))
    return dumps


def _processes(block: str) -> Iterator[Stack]:
    for part in re.split(r"^(?=--- rank )", block, flags=re.MULTILINE)[1:]:
        header = _PROCESS_LINE.match(part)
        if header:
            rank, pid, program, method = header.groups()
            frames = _main_thread(part.splitlines()[1:])
            usage = _USAGE_LINE.search(part)
            cpu_s, printed = (float(usage[1]), int(usage[2])) if usage else (0.0, 0)
            yield Stack(int(rank), int(pid), program, method, frames, cpu_s, printed)


def _main_thread(lines: Sequence[str]) -> Tuple[Frame, ...]:
    """Return the frames of the main thread; of several dumps of a process, those of the last."""
    threads: List[Tuple[bool, List[Frame]]] = []
    for line in lines:
        header, frame = _THREAD_LINE.match(line), _FRAME_LINE.match(line)
        if header:
            threads.append((header[1] != "Thread", []))
        elif frame and threads:
            number = int(frame[2]) if frame[2].isdigit() else 0
            threads[-1][1].append(Frame(frame[1], number, frame[3]))
    chosen = [frames for current, frames in threads if current] or [f for _, f in threads]
    frames = chosen[-1] if chosen else []
    return tuple(frame for frame in frames if not _OF_PRELOAD.search(frame.file))


def group_equal(stacks: Iterable[Stack]) -> List[StackGroup]:
    """Return the first process of each rank, grouped by stack; the rarest stacks come first."""
    first: Dict[int, Stack] = {}
    for stack in stacks:
        first.setdefault(stack.rank, stack)
    ranks_by_stack: Dict[object, List[int]] = {}
    for rank in sorted(first):
        stack = first[rank]
        ranks_by_stack.setdefault(stack.frames or (stack.program, stack.method), []).append(rank)
    groups = [StackGroup(tuple(ranks), first[ranks[0]]) for ranks in ranks_by_stack.values()]
    return sorted(groups, key=lambda group: (bool(group.collective), len(group.ranks)))


def blocking_collective(frames: Sequence[Frame]) -> str:
    """Return the collective that a stack is in: its outermost call of torch, "" for none.

    The innermost call has to be one that waits: a rank that computes inside a wrapper does not.
    """
    operation = ""
    for frame in frames:
        if any(_is_in(frame, file) for file in COLLECTIVE_FILES):
            is_wrapper = operation and frame.function in WRAPPER_FUNCTIONS
            operation = operation if is_wrapper else frame.function
        elif frame.function == BACKWARD_FUNCTION:
            return operation or "backward"
        elif not any(_is_in(frame, file) for file in INTERMEDIATE_FILES) and (
            operation or not _is_stdlib(frame)
        ):
            break
    return operation


def _is_stdlib(frame: Frame) -> bool:
    """Return whether a frame is in the standard library: ranks may wait in `threading`."""
    return bool(_STDLIB.search(frame.file))


@dataclass(frozen=True)
class StackReport:
    """The stacks of a whole run at one moment."""

    groups: Tuple[StackGroup, ...]  # the rarest first
    ended: Tuple[int, ...]  # ranks that have no process any more
    unknown: Tuple[int, ...]  # ranks of hosts that sent no stacks
    node_of_rank: Mapping[int, str]
    moving: Tuple[int, ...] = ()  # ranks that did something since an earlier look


def moving_ranks(
    earlier: Iterable[Stack], later: Iterable[Stack], *, elapsed_s: float, backend: str
) -> Tuple[int, ...]:
    """Return the ranks that are elsewhere than `elapsed_s` ago, have printed, or have computed.

    A rank that waits for a GPU may keep its core busy, so there computing shows nothing.
    """
    before = {(stack.rank, stack.pid): stack for stack in earlier}
    min_cpu_s = MIN_CPU_SHARE * elapsed_s if backend == "gloo" else math.inf

    def has_moved(now: Stack) -> bool:
        then = before.get((now.rank, now.pid))
        if then is None:
            return False
        is_elsewhere = (then.frames, then.printed) != (now.frames, now.printed)
        return is_elsewhere or now.cpu_s - then.cpu_s >= min_cpu_s

    return tuple(sorted({stack.rank for stack in later if has_moved(stack)}))


def group_run_stacks(plan: Plan, stacks_by_node: Mapping[str, Sequence[Stack]]) -> StackReport:
    """Return the stacks of a whole run as one report; no host is heard on another's ranks."""
    node_of_rank = plan.node_of_rank or {
        stack.rank: node for node, stacks in stacks_by_node.items() for stack in stacks
    }
    own_stacks = {
        node: [stack for stack in stacks if node_of_rank.get(stack.rank) == node]
        for node, stacks in stacks_by_node.items()
    }
    folders = [node_plan.cwd for node_plan in plan.nodes]
    return group_by_stack(own_stacks, node_of_rank, folders)


def group_by_stack(
    stacks_by_node: Mapping[str, Sequence[Stack]],
    node_of_rank: Mapping[int, str],
    folders: Sequence[str],
) -> StackReport:
    """Return the stacks of all hosts that answered as one report.

    Paths below the working folders of ranks, on any host, are shortened.
    """
    groups = group_equal(
        replace(stack, frames=tuple(_shorten_path(frame, folders) for frame in stack.frames))
        for stacks in stacks_by_node.values()
        for stack in stacks
    )
    grouped_ranks = {rank for group in groups for rank in group.ranks}
    unknown = tuple(rank for rank, node in node_of_rank.items() if node not in stacks_by_node)
    known_ranks = {*grouped_ranks, *unknown}
    ended = tuple(rank for rank in node_of_rank if rank not in known_ranks)
    return StackReport(tuple(groups), ended, unknown, node_of_rank)


def summary(report: StackReport) -> str:
    """Return which ranks wait for which, or where the odd ones are, as one sentence.

    Where ranks in a collective are moving, nobody is said to hold up anybody.
    """
    waiting: Dict[str, List[int]] = {}
    for group in report.groups:
        if group.collective:
            waiting.setdefault(group.collective, []).extend(group.ranks)
    busy = [group for group in report.groups if not group.collective]
    others = [_describe_group(group, report.node_of_rank) for group in busy]
    others += _describe_missing(report)
    if not waiting:
        return ", and ".join(other.replace(", which ", " ", 1) for other in others[:3])
    moving = {op: [r for r in sorted(ranks) if r in report.moving] for op, ranks in waiting.items()}
    if any(moving.values()):
        return " and ".join(
            f"{format_ranges(ranks)} {'is' if len(ranks) == 1 else 'are'} moving, in {operation}"
            for operation, ranks in moving.items()
            if ranks
        )
    waits_text = " and ".join(
        f"{format_ranges(sorted(ranks))} wait{'s' if len(ranks) == 1 else ''} in {operation}"
        for operation, ranks in waiting.items()
    )
    if others:
        return f"{waits_text} for {' and '.join(others[:3])}"
    if len(waiting) > 1:
        return f"{waits_text}: they do not agree on which collective comes next"
    if len({_user_call(group) for group in report.groups}) > 1:
        return f"{waits_text}, called from different places: one may be a call ahead of the others"
    cause = "the network between them, or the sizes they pass, differ"
    return f"{waits_text}, all at the same place: {cause}"


def _describe_missing(report: StackReport) -> Iterator[str]:
    if report.ended:
        clause = "which has" if len(report.ended) == 1 else "which have"
        yield f"{with_nodes(report.ended, report.node_of_rank)}, {clause} ended"
    if report.unknown:
        yield f"{with_nodes(report.unknown, report.node_of_rank)}, which sent no stacks"


def _shorten_path(frame: Frame, folders: Sequence[str]) -> Frame:
    package = _PACKAGE.match(frame.file)
    if package:
        return replace(frame, file=frame.file[package.end() :])
    stdlib = _STDLIB.search(frame.file)
    if stdlib:
        return replace(frame, file=frame.file[stdlib.start() :].lstrip("/"))
    for folder in folders:
        if frame.file.startswith(folder + "/"):
            return replace(frame, file=frame.file[len(folder) + 1 :])
    return frame


def _user_call(group: StackGroup) -> Optional[Frame]:
    """Return the user's call of the collective."""
    frames = group.stack.frames
    return next((f for f in frames if not _is_in(f, "torch/") and not _is_stdlib(f)), None)


def _is_in(frame: Frame, path: str) -> bool:
    return frame.file.startswith(path) or f"/{path}" in frame.file


def _describe_group(group: StackGroup, node_of_rank: Mapping[int, str]) -> str:
    stack = group.stack
    clause = "which is" if len(group.ranks) == 1 else "which are"
    who = with_nodes(group.ranks, node_of_rank)
    if not stack.frames:
        return f"{who} ({stack.method})"
    inner, user_call = stack.frames[0], _user_call(group)
    if user_call is None or user_call == inner:
        return f"{who}, {clause} in {inner}"
    return f"{who}, {clause} in {inner.function}, called in {user_call}"


def with_nodes(ranks: Sequence[int], node_of_rank: Mapping[int, str]) -> str:
    """Return ranks as text, with their node if all are on one."""
    names = {node_of_rank.get(rank, "") for rank in ranks}
    return f"{format_ranges(ranks)} on {names.pop()}" if len(names) == 1 else format_ranges(ranks)
