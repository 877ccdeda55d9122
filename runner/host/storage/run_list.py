"""Run list: the runs of this host and their states, from their folders."""

from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import replace
from typing import Any, Collection, Dict, Generator, List, Mapping, Optional

from runner.core.codec import decode, encode
from runner.core.model.run_info import HostRunStatus, RunInfo
from runner.core.model.slurm import JobStatus
from runner.core.protocol.paths import JOB_FOLDER, JobPaths, RunPaths, is_node_name, is_run_id
from runner.core.protocol.states import State
from runner.host.process import procfs
from runner.host.storage import run_owner
from runner.host.storage.run_folder import final_state, lost_a_node, mtime, read_state
from runner.host.storage.run_progress import read_newest_sample, read_progress

NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def list_runs(
    workdir: str,
    node: str,
    others: Collection[str],
    run_id: str = "",
    *,
    samples: bool = False,
) -> Generator[None, None, Dict[str, Any]]:
    """List the runs of this host below a workdir, all or one, and how many others are unreadable.

    `node` and `others` as in `host_folders`; `samples`: with the load of the nodes of jobs.
    """
    statuses, unreadable = [], 0
    runs_dir = os.path.join(workdir, "runs")
    names = [run_id] if run_id else filter(is_run_id, procfs.list_names(runs_dir))
    for name in names:
        yield
        try:
            found, paths = host_folders(workdir, name, node, others), JobPaths(workdir, name)
            context = _read_context(paths)
            has_begun = False
            seen = ((folder, read_run(folder)) for folder in found)
            for folder, status in seen:
                if status is not None:
                    has_begun = True
                    job = _job(paths, context) if is_in_job(folder) else None
                    here = job is not None or not run_owner.other_host(folder)
                    recorded = os.path.basename(folder.root)
                    found_here = replace(status, node=recorded, here=here, job=job)
                    if samples and job is not None:
                        sample = read_newest_sample(folder, status.info.attempt)
                        found_here = replace(found_here, sample=sample)
                    statuses.append(encode(found_here))
            if not has_begun and (queued := _read_queued(paths, context, node)):
                statuses.append(encode(queued))
        except PermissionError:
            unreadable += 1
    return {"runs": statuses, "unreadable": unreadable, "now": time.time()}


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
    if JOB_FOLDER in names:  # of all its nodes, also those that a disk that lags does not list yet
        known = procfs.read_text(JobPaths(workdir, run_id).start(0).nodes).split()
        return [RunPaths(workdir, run_id, name) for name in sorted({*folders, *known})]
    own = folders.pop(node, None)
    if own and not run_owner.other_host(own):  # so nobody else's is
        folders = {name: folder for name, folder in folders.items() if name not in others}
    renamed = [folder for folder in folders.values() if run_owner.is_local(folder)]
    return [own, *renamed] if own else renamed


def is_in_job(folder: RunPaths) -> bool:
    """Return whether a run belongs to a job of Slurm: this host speaks for all its nodes."""
    workdir, _, run_id, _ = folder.root.rsplit("/", 3)
    return os.path.isdir(JobPaths(workdir, run_id).root)


def _read_context(paths: JobPaths) -> Dict[str, Any]:
    """Return what is on record of a job, {} for a run that has none.

    PermissionError: it is another user's.
    """
    try:
        with open(paths.context, encoding="utf-8") as file:
            return dict(json.load(file))
    except PermissionError:
        raise
    except (OSError, ValueError, TypeError):
        return {}


def _job(paths: JobPaths, context: Mapping[str, Any]) -> JobStatus:
    """Return the job of a run, with the name that Slurm should know it by."""
    job_id = procfs.read_text(paths.job_id).strip()
    return JobStatus(job_id, name="" if context.get("is_shared") else os.path.basename(paths.run))


def _read_queued(paths: JobPaths, context: Mapping[str, Any], node: str) -> Optional[HostRunStatus]:
    """Return the state of a run whose job has not begun it on any node; None if there is none."""
    try:
        owner_uid = os.stat(paths.root).st_uid
        info = decode(RunInfo, context["info"])
        nnodes = int(context["spec"]["cluster"]["slurm"]["nnodes"])
    except PermissionError:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_cancelled = os.path.exists(paths.cancelled)
    return HostRunStatus(
        info=replace(info, nnodes=nnodes, world_size=0),
        owner=procfs.user_name(owner_uid),
        state=State.STOPPED if is_cancelled else State.STARTING,
        alive=not is_cancelled,
        changed_at=mtime(paths.root),
        node=node,
        job=_job(paths, context),
    )


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
    lost_node = not alive and state is State.STOPPED and lost_a_node(folder, info.attempt)
    ends_at = mtime(folder.unattended) if alive else 0.0
    return HostRunStatus(
        info=info,
        owner=procfs.user_name(owner_uid),
        state=state,
        alive=alive,
        changed_at=changed_at,
        relaunch_pending=relaunch_pending,
        lost_node=lost_node,
        unattended_left_s=max(0.0, ends_at - time.time()) if ends_at else None,
        progress=read_progress(folder) if alive else None,
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
