"""Kill loop: SIGKILL to all processes of a run until a scan proves that none is left."""

from __future__ import annotations

import signal
import time
from typing import AbstractSet, Callable, List, Set, Tuple

from runner.core.wire.timing import KILL_TIMEOUT_S
from runner.host.process import procfs, subreaper
from runner.host.process.cgroup import Cgroup

SHIM_GRACE_S = 0.5  # how long the rank shims may outlive their ranks to record how those ended
_NO_PIDS: AbstractSet[int] = frozenset()
_NO_CGROUP = Cgroup()


def kill_until_gone(
    list_alive: Callable[[], List[int]],
    reap: Callable[[], object],
    shims: AbstractSet[int] = _NO_PIDS,
    cgroup: Cgroup = _NO_CGROUP,
    all_gone: Callable[[], bool] = lambda: True,
    helpers: Callable[[], AbstractSet[int]] = frozenset,
    is_disk_stalled: Callable[[], bool] = lambda: False,
) -> Tuple[Set[int], Tuple[int, ...]]:
    """Send SIGKILL until `list_alive` is empty twice in a row, and `all_gone` says so too.

    Args:
        list_alive: Scans for the processes to end.
        reap: Reaps the children that ended; called between scans.
        shims: Killed a moment later: they end with their rank, and record how it ended.
        cgroup: Whatever is in it is killed as well.
        all_gone: Proves that none evades by forking fast: `no_children_left` of a subreaper.
        helpers: Children of ours that are not to end.
        is_disk_stalled: Whether processes may outlive SIGKILL only since they wait for a disk;
            that time does not count.

    Returns:
        Every process that was killed, and those that could not be; see `is_proven`.
    """
    killed: Set[int] = set()
    started_at = time.monotonic()
    empty_rounds = 0
    while empty_rounds < 2:
        reap()
        remaining = list(dict.fromkeys([*list_alive(), *cgroup.pids()]))
        is_clear = not remaining and all_gone()
        if not remaining and not is_clear:  # it forks and ends faster than we scan
            ours = helpers()
            remaining = [pid for pid in subreaper.living_children() if pid not in ours]
        empty_rounds = empty_rounds + 1 if is_clear else 0
        if is_disk_stalled():
            started_at = time.monotonic()
        elapsed_s = time.monotonic() - started_at
        spared = shims if elapsed_s < SHIM_GRACE_S else _NO_PIDS
        # Parents first, as listed: a shell that outlives its child prints a message.
        killed |= procfs.signal_all([pid for pid in remaining if pid not in spared], signal.SIGKILL)
        if remaining and not spared:
            cgroup.kill()
        if not is_clear and elapsed_s > KILL_TIMEOUT_S:
            return killed - set(remaining), tuple(sorted(remaining))
        if killed.issuperset(set(remaining) - spared):  # no new one: give the kernel a moment
            time.sleep(0.005)
    return killed, ()


def is_proven(
    cgroup: Cgroup,
    survivors: Tuple[int, ...],
    all_gone: Callable[[], bool] = lambda: True,
    helpers: AbstractSet[int] = _NO_PIDS,
) -> bool:
    """Return whether it is proven that nothing is left but the `survivors` and our `helpers`.

    The cgroup tells, if there is one; else `all_gone`, or the kernel's list of our children, all
    of them zombies. Some kernels have no such list, and /proc may hide a child as well.
    """
    if survivors:
        return True
    return cgroup.wait_empty() if cgroup.path else all_gone() or bool(_children_except(helpers))


def _children_except(helpers: AbstractSet[int]) -> List[int]:
    return [pid for pid in subreaper.child_pids() if pid not in helpers]
