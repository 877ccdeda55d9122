"""Run list: the runs of this host, their states and how far they are, from their folders."""

from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import replace
from typing import Any, Collection, Dict, Iterator, List, Optional, Pattern

from runner.core.wire.codec import decode, encode
from runner.core.wire.metrics import (
    MAX_RATE,
    LatestMetrics,
    Metrics,
    RankProgress,
    compile_pattern,
    may_have_metrics,
    parse_metrics,
    seconds_left,
)
from runner.core.wire.paths import (
    METRICS_STREAM,
    RANK_LOG,
    STREAMS,
    RunPaths,
    is_node_name,
    is_run_id,
    rank_source,
)
from runner.core.wire.run_info import HostRunStatus, RunInfo
from runner.core.wire.states import State
from runner.host.process import procfs
from runner.host.process.jobs import checkpoint
from runner.host.storage import run_owner
from runner.host.storage.run_folder import lost_a_node, mtime, read_order, read_state

NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

TAIL = 64 << 10  # bytes that are read of a log, at its end and at its beginning
MAX_RANKS = 16  # that are looked at, the lowest ones
MIN_SECONDS = 10.0  # that an attempt lasts before its time left is told
MAX_LEFT_S = 1e10


def list_runs(
    workdir: str,
    node: str,
    others: Collection[str],
    run_id: str = "",
) -> Dict[str, Any]:
    """List the runs of this host below a workdir, all or one, and how many others are unreadable.

    `node` and `others` as in `host_folders`.
    """
    statuses = []
    unreadable = 0
    runs_dir = os.path.join(workdir, "runs")
    names = [run_id] if run_id else filter(is_run_id, procfs.list_names(runs_dir))
    for name in names:
        checkpoint()
        try:
            for folder in host_folders(workdir, name, node, others):
                status = read_run(folder)
                if status is not None:
                    here = not run_owner.other_host(folder)
                    recorded = os.path.basename(folder.root)
                    statuses.append(encode(replace(status, node=recorded, here=here)))
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
    own = folders.pop(node, None)
    if own and not run_owner.other_host(own):  # so nobody else's is
        folders = {name: folder for name, folder in folders.items() if name not in others}
    renamed = [folder for folder in folders.values() if run_owner.is_local(folder)]
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
    run_id, _ = folder.root.split("/")[-2:]
    info = replace(_read_run_info(folder) or RunInfo(run_id), run_id=run_id)  # it may be a copy
    state = read_state(folder)
    changed_at = max(mtime(path) for path in (folder.root, folder.events))
    alive = run_owner.is_alive(folder)
    if state is not None and not state.is_terminal and run_owner.other_host(folder):
        alive = run_owner.heartbeat_age(folder) < run_owner.OWNER_TIMEOUT_S
    may_follow = not (alive or os.path.lexists(folder.stop_marker))
    relaunch_pending = may_follow and time.time() < mtime(folder.relaunch_marker)
    lost_node = not alive and state is State.STOPPED and lost_a_node(folder, info.attempt)
    return HostRunStatus(
        info=info,
        owner=procfs.user_name(owner_uid),
        state=state,
        alive=alive,
        changed_at=changed_at,
        relaunch_pending=relaunch_pending,
        lost_node=lost_node,
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


def read_progress(folder: RunPaths) -> Optional[RankProgress]:
    """Return how far the lowest rank here is that says how many steps there are.

    Where none does, the lowest that prints its steps; None if there is none.
    """
    order = read_order(folder)
    if order is None:
        return None
    pattern = compile_pattern(order.progress_pattern)
    names = procfs.list_names(folder.attempt_folder(order.attempt))
    ranks = {int(match[1]) for match in map(RANK_LOG.fullmatch, names) if match}
    lowest: Optional[RankProgress] = None
    for rank in sorted(ranks)[:MAX_RANKS]:
        streams = (*STREAMS, METRICS_STREAM)
        logs = [folder.stream_log(order.attempt, rank_source(rank), name) for name in streams]
        ends = [(metrics, log) for log in logs if (metrics := _latest(log, pattern)) is not None]
        if not ends:
            continue
        metrics, log = max(ends, key=lambda end: (end[0].form, mtime(end[1])))
        begun = _parsed(_read(log), pattern)
        first = next((each.step for each in begun if each.form == metrics.form), None)
        seconds = mtime(log) - mtime(folder.order)
        step = metrics.step or 0
        left_s = None
        if first is not None and seconds >= MIN_SECONDS:  # the first may be that of a checkpoint
            left_s = seconds_left(metrics.steps, step, step - first, seconds)
        has_rate = metrics.rate is not None and 0 <= metrics.rate <= MAX_RATE
        progress = RankProgress(
            rank=rank,
            step=step,
            steps=metrics.steps,
            rate=metrics.rate if has_rate else None,
            unit=metrics.unit,
            left_s=None if left_s is None else min(left_s, MAX_LEFT_S),
        )
        if progress.steps is not None:
            return progress
        lowest = lowest or progress
    return lowest


def _latest(log: str, pattern: Optional[Pattern[str]]) -> Optional[Metrics]:
    """Return the latest metrics in the last lines of a log."""
    data = _read(log, is_end=True).replace(b"\r", b"\n")
    if len(data) == TAIL:  # its first line is torn
        data = data.partition(b"\n")[2]
    latest = LatestMetrics()
    for metrics in _parsed(data, pattern):
        latest.take(metrics)
    return latest.metrics


def _parsed(data: bytes, pattern: Optional[Pattern[str]]) -> Iterator[Metrics]:
    """Yield the metrics with a step, of whole lines and the forms of one that redraws itself."""
    for line in data.replace(b"\r", b"\n").split(b"\n")[:-1]:
        metrics = parse_metrics(line, pattern) if may_have_metrics(line, pattern) else None
        if metrics is not None and metrics.step is not None:
            yield metrics


def _read(path: str, *, is_end: bool = False) -> bytes:
    """Return the beginning or the end of a file; b"" if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a rank may make a FIFO
    except OSError:
        return b""
    try:
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, TAIL, max(0, size - TAIL) if is_end else 0)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
