"""The last step of the ladder: kill everything below a process, and look until nothing is left."""

from __future__ import annotations

import os
import signal
import time
from typing import AbstractSet, Callable, List, Set, Tuple

from runner.host.process import procfs
from runner.host.process.cgroup import Cgroup

WITNESS_S = 0.5
"""How long the rank shims may outlive their ranks to write down their end."""

KILL_S = 10.0
"""How long processes may survive SIGKILL (a wedged driver) before they are named."""

_NOBODY: AbstractSet[int] = frozenset()
_NO_CGROUP = Cgroup()


def kill_all(
    alive: Callable[[], List[int]],
    reap: Callable[[], object],
    witnesses: AbstractSet[int] = _NOBODY,
    cgroup: Cgroup = _NO_CGROUP,
    gone: Callable[[], bool] = lambda: True,
) -> Tuple[Set[int], Tuple[int, ...]]:
    """Send SIGKILL until `alive` is empty twice in a row, and `gone` says so too.

    Args:
        alive: The processes to end, looked up anew at each call.
        reap: Takes in the children that ended; called between looks.
        witnesses: The rank shims among them, killed a moment later: they end with their rank, and
            write down how it ended.
        cgroup: Whatever is in it is to end as well.
        gone: What no process slips through, however fast it forks: `proc.childless` of a subreaper.

    Returns:
        Every process that was killed, and those that could not be.
    """
    killed: Set[int] = set()
    began = time.monotonic()
    kept: List[int] = []
    empty = 0
    while empty < 2:
        reap()
        left = list(dict.fromkeys([*alive(), *cgroup.pids()]))
        clear = not left and gone()
        if not left and not clear:  # one that forks and ends faster than we look around
            before, kept = kept, procfs.children()
            left = [pid for pid in kept if procfs.running(pid)]
            # Or the dead whom their tracer keeps: they stay, and nobody is born.
            clear = not left and (kept == before or time.monotonic() - began > KILL_S)
        empty = empty + 1 if clear else 0
        passed = time.monotonic() - began
        spared = witnesses if passed < WITNESS_S else _NOBODY
        # Parents first, as they come: a shell that outlives its child talks about it.
        killed |= procfs.send([pid for pid in left if pid not in spared], signal.SIGKILL)
        if left and not spared:
            cgroup.kill()
        if left and passed > KILL_S:
            return killed - set(left), tuple(sorted(left))
        if killed.issuperset(set(left) - spared):  # nobody new: give the kernel a moment
            time.sleep(0.005)
    return killed, ()


def confirmed(cgroup: Cgroup, survivors: Tuple[int, ...]) -> bool:
    """Whether the cgroup, if there is one, has nothing in it but the `survivors`."""
    return bool(survivors) or not cgroup.path or cgroup.emptied()


def reap_all() -> List[Tuple[int, int]]:
    """Take in every child that ended; return their pids and wait statuses.

    The only place on a host that waits for children: two would steal each other's results.
    """
    ended: List[Tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))
