"""Run list: the runs of this host and their states, from their folders."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from typing import Any, Dict, Generator, Optional

from runner.core.codec import decode, encode
from runner.core.model.run_info import HostRunStatus, RunInfo
from runner.core.protocol.paths import RunPaths, is_run_id, validated_paths
from runner.core.protocol.states import State
from runner.host.process import procfs
from runner.host.storage import run_owner
from runner.host.storage.run_folder import final_state, mtime, read_state


def list_runs(workdir: str, node: str, run_id: str = "") -> Generator[None, None, Dict[str, Any]]:
    """List the runs of `node` below a workdir, all or one, and how many others are unreadable."""
    statuses, unreadable = [], 0
    runs_dir = os.path.join(workdir, "runs")
    names = [run_id] if run_id else filter(is_run_id, procfs.list_names(runs_dir))
    for name in names:
        yield
        try:
            status = read_run(validated_paths(workdir, name, node))
        except PermissionError:
            unreadable += 1
            continue
        if status is not None:
            statuses.append(encode(status))
    return {"runs": statuses, "unreadable": unreadable, "now": time.time()}


def read_run(folder: RunPaths) -> Optional[HostRunStatus]:
    """Return the state of one run, None where it has no record for this node.

    The commands of a dry run, pasted there, make a folder with nothing but `work`.
    PermissionError: it is another user's, and may not be read.
    """
    try:
        owner_uid = os.stat(folder.root).st_uid
        names = os.listdir(folder.root)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if names == ["work"]:
        return None
    run_id, _ = folder.root.split("/")[-2:]
    info = replace(_read_run_info(folder) or RunInfo(run_id), run_id=run_id)  # it may be a copy
    state = read_state(folder)
    changed_at = max(mtime(path) for path in (folder.root, folder.state))
    alive = run_owner.is_alive(folder, owner_uid)
    if state is not None and not state.is_terminal and run_owner.other_host(folder):
        alive = run_owner.heartbeat_age(folder) < run_owner.OWNER_TIMEOUT_S
    if state is None and os.path.exists(folder.order):
        state = State.STARTING  # at least before a power cut
    if not alive and state is not None and not state.is_terminal:
        state = final_state(folder, info.attempt) or state
    relaunch_pending = not alive and time.time() < mtime(folder.relaunch_marker)
    user = procfs.user_name(owner_uid)
    return HostRunStatus(info, user, state, alive, changed_at, relaunch_pending)


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
