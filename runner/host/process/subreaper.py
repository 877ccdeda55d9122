"""Subreaper: the parent of all that a run started, how it is killed, and whether any is left.

A process reaps by `reap_all` in one thread, or does not: an agent, which adopts nobody, does not.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import AbstractSet, Callable, List, NamedTuple, Optional, Set, Tuple

from runner.core.wire.timing import KILL_TIMEOUT_S
from runner.host.process import bounded_child, procfs

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SHIM_GRACE_S = 0.5  # how long the rank shims may outlive their ranks to record how those ended
_NO_PIDS: AbstractSet[int] = frozenset()
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Become the parent of orphaned descendants, so that none escapes by a double fork."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int) -> None:
    """Ask the kernel for `signum` when the parent ends (since Linux 2.1.57, prctl(2))."""
    _prctl(PR_SET_PDEATHSIG, int(signum))


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def reap_all() -> List[Tuple[int, int]]:
    reaped: List[Tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return reaped
        if pid == 0:
            return reaped
        bounded_child.on_reaped(pid, status)
        reaped.append((pid, status))


def no_children_left(helpers: AbstractSet[int] = _NO_PIDS) -> bool:
    """Return whether we have no child, alive or zombie: for a subreaper, no descendant.

    Unlike a scan of /proc it cannot miss a process that forks and ends between two scans. Our
    `helpers` do not count, where the kernel lists our children.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    children = child_pids()
    return bool(children) and helpers >= {*children}


def child_pids() -> List[int]:
    """Return our own children, in one reading; none where the kernel does not list them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def own_descendants() -> List[int]:
    """Return our living descendants; of those that /proc hides, our own children."""
    return list(dict.fromkeys([*procfs.descendants(os.getpid()), *living_children()]))


def living_children() -> List[int]:
    """Return our own children that can still act, by the kernel's word.

    /proc may hide a child that runs under another user (hidepid, set-uid programs); waitid(2) does
    not.
    """
    return [pid for pid in child_pids() if not _is_dead_child(pid)]


def _is_dead_child(pid: int) -> bool:
    try:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
    except ChildProcessError:
        return True
    process = procfs.read_process(pid)  # a zombie that a tracer holds is not reported to us
    return process is not None and not process.alive


class Killed(NamedTuple):
    """The processes that were killed, those that could not be, and whether no other is left."""

    pids: Set[int]
    survivors: Tuple[int, ...] = ()
    is_proven: bool = True


def kill_until_gone(
    list_alive: Callable[[], List[int]],
    reap: Optional[Callable[[], object]] = None,
    shims: AbstractSet[int] = _NO_PIDS,
    helpers: Callable[[], AbstractSet[int]] = frozenset,
    is_disk_stalled: Callable[[], bool] = lambda: False,
) -> Killed:
    """Send SIGKILL until `list_alive` is empty twice in a row, and the kernel says so too.

    Args:
        list_alive: Scans for the processes to end.
        reap: Reaps the children that ended, in the subreaper of the run. Without it we are none:
            whether a scan can miss a process is up to the caller.
        shims: Killed a moment later: they end with their rank, and record how it ended.
        helpers: Children of ours that are not to end.
        is_disk_stalled: Whether processes may outlive SIGKILL only since they wait for a disk;
            that time does not count.
    """
    killed: Set[int] = set()
    started_at = time.monotonic()
    empty_rounds = 0
    while empty_rounds < 2:
        if reap is not None:
            reap()
        remaining = list_alive()
        is_clear = not remaining
        if is_clear and reap is not None:
            ours = helpers()
            is_clear = no_children_left(ours)
            if not is_clear:  # it forks and ends faster than we scan
                remaining = [pid for pid in living_children() if pid not in ours]
        empty_rounds = empty_rounds + 1 if is_clear else 0
        if is_disk_stalled():
            started_at = time.monotonic()
        elapsed_s = time.monotonic() - started_at
        if not is_clear and elapsed_s > KILL_TIMEOUT_S:
            # Zombies that a tracer holds are dead, but some kernels do not list our children.
            is_proven = bool(remaining) or not helpers() >= {*child_pids()}
            return Killed(killed - {*remaining}, tuple(sorted({*remaining})), is_proven)
        spared = shims if elapsed_s < SHIM_GRACE_S else _NO_PIDS
        # Parents first, as listed: a shell that outlives its child prints a message.
        killed |= procfs.signal_all([pid for pid in remaining if pid not in spared], signal.SIGKILL)
        if killed.issuperset(set(remaining) - spared):  # no new one: give the kernel a moment
            time.sleep(0.005)
    return Killed(killed)
