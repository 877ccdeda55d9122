"""Removing what ended runs and unused releases left on this host."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import Any, Dict, Generator, Iterator, Optional, Tuple

from runner.core.protocol.events import ProgramStarted
from runner.core.protocol.paths import RunFolder, is_run_id, release_folder, releases_folder
from runner.host.process import cgroup, procfs
from runner.host.process.job_queue import Steps
from runner.host.storage import release_store, run_owner
from runner.host.storage.run_folder import read_events, read_state
from runner.host.storage.run_lock import Doorway

UNSETTLED_S = 3600.0
"""So long a run without an end on record may be about to start."""


def clean(
    workdir: str, node: str, older_than_s: float, *, dry_run: bool
) -> Generator[None, None, Dict[str, Any]]:
    """Remove runs of this node that ended, and releases that were used last, so long ago.

    Hosts that share a disk each look after their own part of a run. What is in use stays, however
    old: a run whose supervisor lives, or that left a process; a release that a run or a launch
    names.

    Returns:
        The names of the `runs` and `releases` that are gone (or would be), their `bytes` on disk,
        and in `kept` the runs that are old enough and still in use.
    """
    before = time.time() - older_than_s
    gone: Dict[str, Any] = {"runs": [], "releases": [], "kept": [], "bytes": 0}
    for run_id, folder in _runs(workdir, node):
        root = folder.root
        ended, last = _last_sign(folder)
        if last is None or last > before:
            continue
        if _in_use(folder, run_id, node) or (not ended and last > time.time() - UNSETTLED_S):
            gone["kept"].append(run_id)
            continue
        gone["runs"].append(run_id)
        gone["bytes"] += yield from _size(root)
        if not dry_run:
            for left in _cgroups(folder):
                left.remove()
            yield from remove(root)
            with contextlib.suppress(OSError):  # other nodes of one disk have their parts there
                os.rmdir(os.path.dirname(root))
    for name in release_store.unused(workdir, before):
        aside = release_folder(workdir, name)
        if not dry_run:
            aside = release_store.set_aside(releases_folder(workdir), name)
        if aside:
            gone["releases"].append(name)
            gone["bytes"] += yield from _size(aside)
        if aside and not dry_run:
            yield from release_store.remove_tree(aside)
    return gone


def _runs(workdir: str, node: str) -> Iterator[Tuple[str, RunFolder]]:
    """Yield what are runs of ours: they say so, or are the empty place that a launch claimed."""
    for run_id in filter(is_run_id, sorted(release_store.names(os.path.join(workdir, "runs")))):
        folder = RunFolder(workdir, run_id, node)
        if os.path.exists(folder.format) or not release_store.names(folder.root):
            yield run_id, folder


def remove(root: str) -> Steps:
    """Remove a run's folder, also what its ranks made read-only."""
    for folder, folders, _ in os.walk(root):
        for name in folders:
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                if not os.path.islink(path):
                    os.chmod(path, 0o700)
        yield
    yield from release_store.remove_tree(root)


def _cgroups(folder: RunFolder) -> Iterator[cgroup.Cgroup]:
    """Yield those on record; an end without witnesses, or of a stuck process, leaves one."""
    for event in read_events(folder):
        if isinstance(event.body, ProgramStarted):
            path = event.body.cgroup
            yield cgroup.recorded(path, event.run_id, event.node, event.attempt)


def _last_sign(folder: RunFolder) -> Tuple[bool, Optional[float]]:
    """Return whether a run has an end on record, and when it last changed its state, if ever."""
    state = read_state(folder)
    with contextlib.suppress(OSError):
        if state is not None:
            return state.terminal, os.stat(folder.state).st_mtime
        return False, os.stat(folder.root).st_mtime
    return False, None


def _in_use(folder: RunFolder, run_id: str, node: str) -> bool:
    """Whether a supervisor or a guardian of it lives, or a process with its mark or its cgroup."""
    if Doorway(run_id, node).held or run_owner.keepers(folder):
        return True
    state = read_state(folder)
    ended = state is not None and state.terminal
    if not ended and run_owner.elsewhere(folder) and run_owner.silence(folder) < UNSETTLED_S:
        return True  # it is another machine's to say
    if any(left.pids() for left in _cgroups(folder)):
        return True
    return bool(procfs.marked({f"RUNNER_RUN_ID={run_id}", f"RUNNER_NODE={node}"}))


def _size(root: str) -> Generator[None, None, int]:
    """Return the bytes a folder takes on the disk; what another release has too is not counted."""
    total = 0
    for folder, _, files in os.walk(root):
        for name in files:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(folder, name))
                if not stat.S_ISDIR(found.st_mode) and found.st_nlink == 1:
                    total += found.st_blocks * 512
        yield
    return total
