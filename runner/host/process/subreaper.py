"""Subreaper: the parent of all that a run started, how its children end, and whether any is left.

A process reaps by `reap_all` in one thread, or does not: an agent, which adopts nobody, does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import time
from typing import AbstractSet, Callable, Dict, List, NoReturn, Optional, Tuple

from runner.host.process.jobs import in_loop
from runner.host.process.procfs import descendants, stat_fields

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_KILL_TRIES = 20
_KILL_PAUSE_S = 0.005

_awaited: Dict[int, Optional[int]] = {}  # wait statuses of the children of `fork`


def become_subreaper() -> None:
    """Become the parent of orphaned descendants, so that none escapes by a double fork."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int) -> None:
    """Ask the kernel for `signum` when the parent ends (since Linux 2.1.57, prctl(2))."""
    _prctl(PR_SET_PDEATHSIG, int(signum))


def fork(run_child: Callable[[], NoReturn]) -> int:
    """Start a child; `exit_code` tells how it ends, whoever reaps it."""
    return in_loop(functools.partial(_fork, run_child))


def _fork(run_child: Callable[[], NoReturn]) -> int:
    pid = os.fork()
    if pid == 0:
        run_child()
    _awaited[pid] = None
    return pid


def exit_code(pid: int) -> Optional[int]:
    """Return, once, the exit code of a child of `fork`, or minus its signal; None while it runs."""
    status = _awaited[pid]
    if status is None:
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
        if not ended_pid:
            return None
    del _awaited[pid]
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def kill(pid: int) -> Optional[int]:
    """End a child of `fork` and its group; return as `exit_code`, soon.

    One that hangs in the kernel is not waited for.
    """
    code = exit_code(pid)
    if code is None:  # else its number may be another's
        for send in (os.killpg, os.kill):  # before its setsid the group does not exist
            with contextlib.suppress(OSError):
                send(pid, signal.SIGKILL)
    for _ in range(_KILL_TRIES):
        if code is not None:
            break
        time.sleep(_KILL_PAUSE_S)
        code = exit_code(pid)
    return code


def reap_all() -> List[Tuple[int, int]]:
    """Reap every child that ended; return their pids and wait statuses."""
    reaped: List[Tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return reaped
        if pid == 0:
            return reaped
        if pid in _awaited:
            _awaited[pid] = status
        reaped.append((pid, status))


def no_children_left(helpers: AbstractSet[int] = frozenset()) -> bool:
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
    return list(dict.fromkeys([*descendants(os.getpid()), *living_children()]))


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
    fields = stat_fields(pid)  # a zombie that a tracer holds is not reported to us
    return bool(fields) and fields[0] in (b"Z", b"X") and int(fields[17]) <= 1


_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
