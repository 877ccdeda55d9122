"""Garbage collection: removes ended runs, unused releases and environments from this host."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import Any, Collection, Dict, Iterator, Optional, Tuple

from runner.core.wire.events import Ended, NotificationFailed
from runner.core.wire.paths import RunPaths, is_run_id
from runner.host.container import remove_in_child
from runner.host.process import procfs
from runner.host.process.jobs import POLL_S, pause
from runner.host.storage import environment, pool, run_owner
from runner.host.storage.keep import remove_kept
from runner.host.storage.permissions import remove_tree
from runner.host.storage.run_folder import EventLog, mtime, read_events, read_order, read_state
from runner.host.storage.run_list import host_folders

UNFINISHED_GRACE_S = 3600.0  # how long a run without an end on record may still be about to start


def collect_garbage(
    workdir: str,
    node: str,
    older_than_s: float,
    others: Collection[str] = (),
    only: Optional[Collection[str]] = None,
    *,
    dry_run: bool,
    with_kept: bool = False,
) -> Dict[str, Any]:
    """Remove what ended or was last used more than `older_than_s` ago.

    That is runs of this node, releases, and environments that were prepared; and what tasks keep,
    if asked.

    Each of several hosts that share a disk removes its own part of a run. What is in use stays,
    however old: a run whose supervisor or processes live, a release that an agent has pinned.
    `only` names the runs that may be removed, by default all; `node`, `others`: see `host_folders`.
    The result names what is (or would be) removed, and as `in_use` old runs that stay: also those
    of which another user has files.
    """
    cutoff = time.time() - older_than_s
    names = ("runs", "releases", "environments", "kept", "in_use")
    removed: Dict[str, Any] = {**{name: [] for name in names}, "bytes": 0}
    tagged = procfs.tagged_runs()  # whatever begins later has a supervisor
    for run_id, folder in _own_runs(workdir, node, others):
        used_at = max(mtime(folder.root), mtime(folder.events))
        if not used_at or used_at > cutoff:
            continue
        tag = (run_id, os.path.basename(folder.root))
        is_free = tag not in tagged and _is_over(folder, used_at)
        if is_free and only is not None and run_id not in only:
            continue
        size = 0
        if is_free and not dry_run:
            is_free = not remove_left_container(folder)
        if is_free:
            size = remove_tree(folder.root, dry_run=dry_run)
            is_free = dry_run or not os.path.lexists(folder.root)  # root's, as from a container
        if not is_free:
            removed["in_use"].append(run_id)
            continue
        with contextlib.suppress(OSError):  # other nodes share the disk
            os.rmdir(os.path.dirname(folder.root))
        removed["runs"].append(run_id)
        removed["bytes"] += size
    removed["releases"], size = pool.prune(workdir, cutoff=cutoff, dry_run=dry_run)
    removed["bytes"] += size
    for path in environment.find_unused(workdir, cutoff):
        removed["environments"].append(os.path.basename(path))
        removed["bytes"] += environment.remove(path, dry_run=dry_run)
    for place, size in remove_kept(workdir, cutoff, dry_run=dry_run) if with_kept else ():
        removed["kept"].append(place)
        removed["bytes"] += size
    removed["runs"] = list(dict.fromkeys(removed["runs"]))  # of a job, all nodes have parts here
    return removed


def _own_runs(workdir: str, node: str, others: Collection[str]) -> Iterator[Tuple[str, RunPaths]]:
    """Yield the folders of this host's runs: those with an order, or empty ones (reserved)."""
    for run_id in filter(is_run_id, procfs.list_names(os.path.join(workdir, "runs"))):
        with contextlib.suppress(PermissionError):  # another user's
            for folder in host_folders(workdir, run_id, node, others):
                if os.path.exists(folder.order) or not procfs.list_names(folder.root):
                    yield run_id, folder


def _is_over(folder: RunPaths, used_at: float) -> bool:
    """Return whether nothing of a run lives, nor is about to start."""
    state = read_state(folder)
    if run_owner.is_alive(folder):
        return False
    if state is not None and state.is_terminal:
        return True
    if run_owner.other_host(folder):  # it alone can tell
        return run_owner.heartbeat_age(folder) > UNFINISHED_GRACE_S
    return used_at < time.time() - UNFINISHED_GRACE_S


def remove_left_container(folder: RunPaths) -> str:
    """Remove the container of a run whose engine did not answer at its end, and record that.

    Return why it is not known that it is gone, "" if it is.
    """
    order = read_order(folder)
    events = read_events(folder)
    container = order.container if order is not None else None
    bodies = [event.body for event in events if not isinstance(event.body, NotificationFailed)]
    end = bodies[-1] if bodies else None
    if order is None or container is None or not isinstance(end, Ended) or not end.unproven:
        return ""
    problem = remove_in_child(container, os.environ, lambda: pause(POLL_S))
    if not problem:
        EventLog(folder, order).finalise(replace(end, unproven="", verified=True))
    return problem
