"""The Python stacks of a run's ranks: as text in a host's log, and what they tell together.

A host appends each dump to its log `stacks`: a line of its own, then every process with its
threads in the form of CPython's `faulthandler`, which is the form people know.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from runner.core.text import spans

STALLED = "no rank made progress for"
"""How the reason begins for which a watchdog stops a run."""

DUMP = "=== stacks, {when}: {why}\n"
PROCESS = "--- rank {rank}: process {pid} ({program}), by {how}\n"

_DUMP = re.compile(r"=== stacks, (\S+): (.*)")
_PROCESS = re.compile(r"--- rank (\d+): process (\d+) \((.*)\), by (.*)")
_THREAD = re.compile(r"(Current thread|Thread) .*\(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')

TORCH = "torch/distributed/"
"""A frame below this folder waits for other ranks."""

WRAPPERS = frozenset(
    ("wrapper", "<module>", "_time_logger", "__call__", "inner", "decorate_context")
)
"""Functions there that are no operation."""

BACKWARD = "_engine_run_backward"
"""Autograd's; under DDP the gradients are reduced in it."""


@dataclass(frozen=True)
class Frame:
    """One call; `line` is 0 where it is not known."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@dataclass(frozen=True)
class Stack:
    """One process of a rank.

    Attributes:
        rank: The rank it belongs to.
        pid: On its host.
        program: Its name.
        how: What read the stack; or why there is none.
        frames: Of its main thread, the innermost first; () for none.
    """

    rank: int
    pid: int
    program: str
    how: str
    frames: Tuple[Frame, ...] = ()


@dataclass(frozen=True)
class Dump:
    """What one host said at one moment; `when` is its own time, ISO 8601."""

    when: str
    why: str
    stacks: Tuple[Stack, ...]


@dataclass(frozen=True)
class Group:
    """Ranks whose main threads stand at the same place."""

    ranks: Tuple[int, ...]
    stack: Stack

    @property
    def waits(self) -> str:
        """The operation of several ranks that they are in, "" for none."""
        return waits_in(self.stack.frames)


def parse(text: str) -> List[Dump]:
    """Return the dumps in a host's log; what is no line of one is skipped."""
    dumps: List[Dump] = []
    for block in re.split(r"^(?==== stacks, )", text, flags=re.MULTILINE):
        head = _DUMP.match(block)
        if head:
            dumps.append(Dump(head[1], head[2], tuple(_processes(block))))
    return dumps


def _processes(block: str) -> Iterator[Stack]:
    for part in re.split(r"^(?=--- rank )", block, flags=re.MULTILINE)[1:]:
        head = _PROCESS.match(part)
        if head:
            rank, pid, program, how = head.groups()
            yield Stack(int(rank), int(pid), program, how, _main_thread(part.splitlines()[1:]))


def _main_thread(lines: Sequence[str]) -> Tuple[Frame, ...]:
    """Return the frames of the thread that answered; of several dumps of a process, the last."""
    threads: List[Tuple[bool, List[Frame]]] = []
    for line in lines:
        head, frame = _THREAD.match(line), _FRAME.match(line)
        if head:
            threads.append((head[1] == "Current thread", []))
        elif frame and threads:
            number = int(frame[2]) if frame[2].isdigit() else 0
            threads[-1][1].append(Frame(frame[1], number, frame[3]))
    chosen = [frames for current, frames in threads if current] or [f for _, f in threads]
    return tuple(chosen[-1]) if chosen else ()


def grouped(stacks: Iterable[Stack]) -> List[Group]:
    """Return the ranks' first processes, equal stacks as one; the rarest first: they are odd."""
    first: Dict[int, Stack] = {}
    for stack in stacks:
        first.setdefault(stack.rank, stack)
    alike: Dict[object, List[int]] = {}
    for rank in sorted(first):
        stack = first[rank]
        alike.setdefault(stack.frames or (stack.program, stack.how), []).append(rank)
    groups = [Group(tuple(ranks), first[ranks[0]]) for ranks in alike.values()]
    return sorted(groups, key=lambda group: (bool(group.waits), len(group.ranks)))


def waits_in(frames: Sequence[Frame]) -> str:
    """Return the operation of several ranks that a stack ends in: the outermost call of torch's."""
    found = ""
    for frame in frames:
        if _in_torch(frame, TORCH):
            found = found if frame.function in WRAPPERS else frame.function
        elif frame.function == BACKWARD:
            return found or "backward"
        elif found or not (_in_torch(frame, "torch/") or "/lib/python3" in frame.file):
            break
    return found


def sentence(groups: Sequence[Group], missing: Sequence[int], nodes: Mapping[int, str]) -> str:
    """Return who waits for whom, "" where nobody waits in an operation of torch's.

    Args:
        groups: All of the run's.
        missing: Ranks that have no process any more.
        nodes: The node of each rank.
    """
    waiting: Dict[str, List[int]] = {}
    for group in groups:
        if group.waits:
            waiting.setdefault(group.waits, []).extend(group.ranks)
    others = [group for group in groups if not group.waits]
    if not waiting:
        return ""
    wait = " and ".join(
        f"{spans(sorted(ranks))} wait{'s' if len(ranks) == 1 else ''} in {operation}"
        for operation, ranks in waiting.items()
    )
    awaited = [_where(group, nodes) for group in others]
    if missing:
        which = "which has" if len(missing) == 1 else "which have"
        awaited.append(f"{on(missing, nodes)}, {which} ended")
    if awaited:
        return f"{wait} for {' and '.join(awaited)}"
    if len(waiting) > 1:
        return f"{wait}: they do not agree on which comes next"
    if len({group.stack.frames[-1:] and _called_at(group) for group in groups}) > 1:
        return f"{wait}, called from different places: one may be a call ahead of the others"
    return (
        f"{wait}, all at the same place: the network between them, or the sizes they pass, differ"
    )


def shortened(stack: Stack, folders: Sequence[str]) -> Stack:
    """Return a stack with files as people name them, the same on every node.

    Below one of the `folders` in which ranks run, or as part of an installed package.
    """
    return replace(stack, frames=tuple(_short(frame, folders) for frame in stack.frames))


def _short(frame: Frame, folders: Sequence[str]) -> Frame:
    _, library, below = frame.file.rpartition("/site-packages/")
    if library:
        return replace(frame, file=below)
    for folder in folders:
        if frame.file.startswith(folder + "/"):
            return replace(frame, file=frame.file[len(folder) + 1 :])
    return frame


def _called_at(group: Group) -> Optional[Frame]:
    """Return the user's call of the operation."""
    return next((frame for frame in group.stack.frames if not _in_torch(frame, "torch/")), None)


def _in_torch(frame: Frame, folder: str) -> bool:
    return frame.file.startswith(folder) or f"/{folder}" in frame.file


def _where(group: Group, nodes: Mapping[int, str]) -> str:
    stack = group.stack
    which = "which is" if len(group.ranks) == 1 else "which are"
    who = on(group.ranks, nodes)
    if not stack.frames:
        return f"{who} ({stack.program}: {stack.how})"
    return f"{who}, {which} in {stack.frames[0]}"


def on(ranks: Sequence[int], nodes: Mapping[int, str]) -> str:
    """Return ranks, with the node of those that are all on one."""
    there = {nodes.get(rank, "") for rank in ranks}
    return f"{spans(ranks)} on {there.pop()}" if len(there) == 1 else spans(ranks)
