"""Processes as /proc shows them: who descends from whom, and who is still there."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from typing import AbstractSet, Dict, Iterable, List, NamedTuple, Set

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Process(NamedTuple):
    """One line of /proc/PID/stat: its parent and its state letter."""

    ppid: int
    state: str


def table() -> Dict[int, Process]:
    """Return every process that can be seen, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        found[int(name)] = Process(int(fields[1]), fields[0].decode())
    return found


def descendants(root: int) -> List[int]:
    """Return the living descendants of `root`, parents first; zombies are not alive."""
    processes = table()
    children: Dict[int, List[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.ppid, []).append(pid)
    found: List[int] = []
    queue = [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            queue.append(child)
            if processes[child].state not in "ZX":
                found.append(child)
    return found


def marked(marks: AbstractSet[str]) -> List[int]:
    """Return the living processes whose environment holds all `marks` (NAME=value), but ours."""
    wanted = {mark.encode() for mark in marks}
    found = []
    for pid, process in table().items():
        if pid == os.getpid() or process.state in "ZX":
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if wanted.issubset(file.read().split(b"\0")):
                    found.append(pid)
        except OSError:
            continue
    return found


def send(pids: Iterable[int], signum: int) -> Set[int]:
    """Signal every process of `pids` that is still there; return those that got it."""
    reached = set()
    for pid in pids:
        try:
            os.kill(pid, signum)
            reached.add(pid)
        except (ProcessLookupError, PermissionError):
            continue
    return reached


def close_all_but(keep: AbstractSet[int]) -> None:
    """Close every descriptor of this process but `keep` and the standard streams."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in keep:
            with contextlib.suppress(OSError):
                os.close(number)


def become_subreaper() -> None:
    """Make orphaned descendants ours, so that none escapes by a double fork."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Ask the kernel for `signum` when the parent ends (since Linux 2.1.57, prctl(2))."""
    _prctl(PR_SET_PDEATHSIG, int(signum))


_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
