"""Run list: the runs of this host, and their states, from their folders."""

from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import replace
from typing import Any, Collection, Dict, List, Optional

from runner.core.wire.codec import decode, encode
from runner.core.wire.events import Stopping
from runner.core.wire.paths import RunPaths, is_node_name, is_run_id
from runner.core.wire.run_info import HostRunStatus, RunInfo
from runner.core.wire.states import ReasonKind, State
from runner.host.process import procfs
from runner.host.process.jobs import checkpoint
from runner.host.storage import run_owner
from runner.host.storage.run_folder import mtime, read_events, read_state

NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def list_runs(workdir: str, node: str, others: Collection[str], run_id: str = "") -> Dict[str, Any]:
    """List the runs of this host below a workdir, all or one, and how many others are unreadable.

    `node` and `others` as in `host_folders`.
    """
    statuses: List[HostRunStatus] = []
    unreadable = 0
    runs_dir = os.path.join(workdir, "runs")
    names = [run_id] if run_id else filter(is_run_id, procfs.list_names(runs_dir))
    for name in names:
        checkpoint()
        try:
            found = map(read_run, host_folders(workdir, name, node, others))
            statuses += [status for status in found if status is not None]
        except PermissionError:
            unreadable += 1
    return {"runs": encode(statuses), "unreadable": unreadable, "now": time.time()}


def host_folders(workdir: str, run_id: str, node: str, others: Collection[str]) -> List[RunPaths]:
    """Return the folders of a run that are this host's, by the machine each has on record.

    The nodes of the run may have other names now: `node` is how the controller calls this host,
    `others` how it calls those that it asks as well. The folder called `node` is returned in any
    case: its host may have been renamed. PermissionError: they are another user's.
    """
    try:
        names = sorted(os.listdir(os.path.join(workdir, "runs", run_id)))
    except OSError as error:
        if error.errno in NO_FOLDER:
            return []
        raise
    folders = {name: RunPaths(workdir, run_id, name) for name in names if is_node_name(name)}
    own = folders.pop(node, None)
    if own and not run_owner.other_host(own):  # so nobody else's is
        folders = {name: folder for name, folder in folders.items() if name not in others}
    owners = ((folder, run_owner.read(folder)) for folder in folders.values())
    renamed = [folder for folder, owner in owners if owner is not None and owner.is_here]
    return [own, *renamed] if own else renamed


def read_run(folder: RunPaths) -> Optional[HostRunStatus]:
    """Return the state of one run, None where it has no record for this node.

    It is empty where the order did not arrive in time (`reserve_attempt`); the commands of a dry
    run, pasted there, make a folder with nothing but `work`.
    PermissionError: it is another user's, and may not be read.
    """
    try:
        owner_uid = os.stat(folder.root).st_uid
        names = os.listdir(folder.root)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if names in ([], ["work"]):
        return None
    run_id, node = folder.root.split("/")[-2:]
    info = replace(_read_run_info(folder) or RunInfo(run_id), run_id=run_id)  # it may be a copy
    state = read_state(folder)
    changed_at = max(mtime(path) for path in (folder.root, folder.events))
    other_host = run_owner.other_host(folder)
    alive = run_owner.is_alive(folder)
    if state is not None and not state.is_terminal and other_host:
        alive = run_owner.heartbeat_age(folder) < run_owner.OWNER_TIMEOUT_S
    may_follow = not (alive or os.path.lexists(folder.stop_marker))
    relaunch_pending = may_follow and time.time() < mtime(folder.relaunch_marker)
    lost_node = False
    if state is State.STOPPED and not alive:
        bodies = [event.body for event in read_events(folder) if event.attempt == info.attempt]
        stops = [body.reason for body in bodies if isinstance(body, Stopping)]
        lost_node = any(reason.kind is ReasonKind.LOST for reason in stops)
    return HostRunStatus(
        info=info,
        owner=procfs.user_name(owner_uid),
        state=state,
        alive=alive,
        changed_at=changed_at,
        relaunch_pending=relaunch_pending,
        node=node,
        lost_node=lost_node,
        here=not other_host,
    )


def _read_run_info(folder: RunPaths) -> Optional[RunInfo]:
    """Return what is on record of the whole run: by `run.json`, or the order if that is damaged."""
    for path in (folder.info, folder.order):
        try:
            with open(path, encoding="utf-8") as file:
                return decode(RunInfo, json.load(file))
        except PermissionError:
            raise
        except (OSError, ValueError):
            continue
    return None
