"""The Python stacks of a run's ranks: as text in a host's log, and what they tell together.

A host appends each dump to its log `stacks`: a line of its own, then every process with its
threads in the form of CPython's `faulthandler`, which is the form people know, and a last line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from runner.core.text import spans

STALLED = "no rank made progress for"
"""How the reason begins for which a watchdog stops a run."""

DUMP = "=== stacks, {when}: {why}\n"
END = "=== end\n"
PROCESS = "--- rank {rank}: process {pid} ({program}), by {how}\n"

_DUMP = re.compile(r"=== stacks, (\S+): (.*)")
_PROCESS = re.compile(r"--- rank (\d+): process (\d+) \((.*)\), by (.*)")
_THREAD = re.compile(r"(Current thread|Stack|Thread) .*\(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')

WAITING = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/rendezvous.py",
)
"""Who is in one of these files waits for other ranks, or talks to them."""

PASSING = ("torch/distributed/c10d_logger.py", "torch/_ops.py")
"""Files between a call of the user's and those."""

WRAPPERS = frozenset(("wrapper", "<module>", "__call__"))
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
    """What one host said at one moment; `when` is its own time, ISO 8601.

    `whole` is whether all of it is here: logs come in pieces.
    """

    when: str
    why: str
    stacks: Tuple[Stack, ...]
    whole: bool = True


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
            whole = block.endswith(END)
            dumps.append(Dump(head[1], head[2], tuple(_processes(block)), whole))
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
            threads.append((head[1] != "Thread", []))
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
    """Return the operation of several ranks that a stack ends in: the outermost call of torch's.

    The innermost call has to be one that waits: who computes inside a wrapper of torch's does not.
    """
    found = ""
    for frame in frames:
        if any(_is_in(frame, file) for file in WAITING):
            found = found if found and frame.function in WRAPPERS else frame.function
        elif frame.function == BACKWARD:
            return found or "backward"
        elif not any(_is_in(frame, file) for file in PASSING) and (found or not _library(frame)):
            break
    return found


def _library(frame: Frame) -> bool:
    """Whether it is Python's own: who waits may do so in `threading`."""
    return bool(re.search(r"(^|/)lib/python3\.\d+/(?!site-packages)", frame.file))


@dataclass(frozen=True)
class Picture:
    """All of a run at one moment.

    Attributes:
        groups: Ranks at the same place, the odd ones first.
        ended: Ranks that have no process any more.
        unknown: Ranks of hosts that told nothing.
        nodes: The node of each rank.
    """

    groups: Tuple[Group, ...]
    ended: Tuple[int, ...]
    unknown: Tuple[int, ...]
    nodes: Mapping[int, str]


def picture(
    told: Mapping[str, Sequence[Stack]], nodes: Mapping[int, str], folders: Sequence[str]
) -> Picture:
    """Put together what hosts told.

    Args:
        told: The stacks of each host that answered.
        nodes: The node of each rank.
        folders: Where ranks run, on any host.
    """
    groups = grouped(shortened(stack, folders) for stacks in told.values() for stack in stacks)
    seen = {rank for group in groups for rank in group.ranks}
    ended = tuple(rank for rank, node in nodes.items() if node in told and rank not in seen)
    unknown = tuple(rank for rank, node in nodes.items() if node not in told)
    return Picture(tuple(groups), ended, unknown, nodes)


def sentence(shown: Picture) -> str:
    """Return who waits for whom; where nobody waits in torch, who is elsewhere than the most."""
    waiting: Dict[str, List[int]] = {}
    for group in shown.groups:
        if group.waits:
            waiting.setdefault(group.waits, []).extend(group.ranks)
    others = [_where(group, shown.nodes) for group in shown.groups if not group.waits]
    others += _without_stack(shown)
    if not waiting:
        return ", and ".join(others[:3])
    wait = " and ".join(
        f"{spans(sorted(ranks))} wait{'s' if len(ranks) == 1 else ''} in {operation}"
        for operation, ranks in waiting.items()
    )
    if others:
        return f"{wait} for {' and '.join(others[:3])}"
    if len(waiting) > 1:
        return f"{wait}: they do not agree on which comes next"
    if len({_called_at(group) for group in shown.groups}) > 1:
        return f"{wait}, called from different places: one may be a call ahead of the others"
    return (
        f"{wait}, all at the same place: the network between them, or the sizes they pass, differ"
    )


def _without_stack(shown: Picture) -> Iterator[str]:
    if shown.ended:
        which = "which has" if len(shown.ended) == 1 else "which have"
        yield f"{on(shown.ended, shown.nodes)}, {which} ended"
    if shown.unknown:
        yield f"{on(shown.unknown, shown.nodes)}, of which no stack is known"


def shortened(stack: Stack, folders: Sequence[str]) -> Stack:
    """Return a stack with files as people name them, the same on every node.

    Below one of the `folders` in which ranks run, or as part of an installed package.
    """
    return replace(stack, frames=tuple(_short(frame, folders) for frame in stack.frames))


def _short(frame: Frame, folders: Sequence[str]) -> Frame:
    _, library, below = frame.file.rpartition("/site-packages/")
    if library:
        return replace(frame, file=below)
    own = re.search(r"/(lib/python3\.\d+/.*)", frame.file)
    if own:
        return replace(frame, file=own[1])
    for folder in folders:
        if frame.file.startswith(folder + "/"):
            return replace(frame, file=frame.file[len(folder) + 1 :])
    return frame


def _called_at(group: Group) -> Optional[Frame]:
    """Return the user's call of the operation."""
    return next(
        (f for f in group.stack.frames if not _is_in(f, "torch/") and not _library(f)), None
    )


def _is_in(frame: Frame, place: str) -> bool:
    return frame.file.startswith(place) or f"/{place}" in frame.file


def _where(group: Group, nodes: Mapping[int, str]) -> str:
    stack = group.stack
    which = "which is" if len(group.ranks) == 1 else "which are"
    who = on(group.ranks, nodes)
    if not stack.frames:
        return f"{who} ({stack.how})"
    inner, own = stack.frames[0], _called_at(group)
    if own is None or own == inner:
        return f"{who}, {which} in {inner}"
    return f"{who}, {which} in {inner.function}, called in {own}"


def on(ranks: Sequence[int], nodes: Mapping[int, str]) -> str:
    """Return ranks, with the node of those that are all on one."""
    there = {nodes.get(rank, "") for rank in ranks}
    return f"{spans(ranks)} on {there.pop()}" if len(there) == 1 else spans(ranks)
