"""Crash recovery: end the processes of a run whose supervisor died, and complete its record.

The guardian recovers its own supervisor's run; an agent recovers a run that lost both.
"""

from __future__ import annotations

import os
import time
from typing import Callable, List, Set, Tuple

from runner.core.model.order import Order
from runner.core.protocol.events import Ended, ProgramStarted, RankExited, Stopping
from runner.core.protocol.paths import RunPaths
from runner.core.protocol.states import State
from runner.host.process import cgroup, procfs
from runner.host.process.kill import cgroup_empty, kill_until_gone, reap_all
from runner.host.process.orphans import RunProcesses
from runner.host.storage import run_owner
from runner.host.storage.journal import EventLog, has_ended, read_events
from runner.host.storage.log_sizes import sample_log_sizes
from runner.host.storage.rank_records import read_rank_records
from runner.host.storage.run_folder import read_order, remove_sidecar_data


def finalise_record(
    folder: RunPaths,
    order: Order,
    reason: str,
    list_alive: Callable[[], List[int]],
    *,
    verified: bool = True,
    all_gone: Callable[[], bool] = lambda: True,
) -> None:
    """Kill what a dead supervisor left, and complete the record in its place.

    Args:
        folder: The run's folder on this host.
        order: What the supervisor carried out.
        reason: Why it ended.
        list_alive: Returns the processes of the run that are alive.
        verified: Whether an empty `list_alive` proves that nothing of the run is left; an empty
            cgroup, where the program had one, proves it too.
        all_gone: See `kill_until_gone`.
    """
    stop_time = {"mono": time.monotonic(), "wall": time.time()}
    program_start = _last_program_start(folder, order)
    program_cgroup = cgroup.from_record(
        program_start.cgroup, order.run_id, order.node, order.attempt
    )
    killed, survivors = kill_until_gone(
        list_alive, reap_all, cgroup=program_cgroup, all_gone=all_gone
    )
    sample_log_sizes(folder, order.attempt, {})
    journal = EventLog(folder, order)
    journal.reopen()
    journal.append(Stopping(reason), **stop_time)
    recorded_exits = {
        (event.body.rank, event.body.start)
        for event in read_events(folder)
        if isinstance(event.body, RankExited) and event.attempt == order.attempt
    }
    for kind, rank, data in read_rank_records(folder.attempt_folder(order.attempt), set()):
        if kind == "exit" and (rank, data["start"]) not in recorded_exits:
            journal.append_exit(rank, data)
    state = State.STUCK if survivors else State.FAILED
    verified = (verified or bool(program_cgroup.path)) and cgroup_empty(program_cgroup, survivors)
    remove_sidecar_data(folder, order)
    journal.finalise(Ended(state, reason, len(killed), survivors, verified))
    program_cgroup.remove()


def recover_unfinished(folder: RunPaths) -> None:
    """Complete the record of a run without a supervisor, as after a power cut."""
    order = read_order(folder)
    if order is not None and not has_ended(folder, order):
        recover_orphaned(folder, order)


def recover_orphaned(folder: RunPaths, order: Order) -> None:
    """Kill what is left when supervisor and guardian are both gone, and complete the record.

    The end is verified by a cgroup only: a process can clear the tags in its environment and leave
    its ancestors.
    """
    processes = run_processes(folder, order)
    processes.freeze()
    reason = "its supervisor and its guardian died; what was left of it was killed"
    if not read_events(folder):
        reason = "its start was cut off"
    finalise_record(folder, order, reason, processes.scan, verified=False)


def run_processes(folder: RunPaths, order: Order) -> RunProcesses:
    """Return the processes of a run without a supervisor."""
    env_tags = _env_tags(order.run_id, order.node)
    records = read_rank_records(folder.attempt_folder(order.attempt), set())
    session_leaders = {int(data["shim"]) for kind, _, data in records if kind == "start"}
    return RunProcesses(env_tags, session_leaders | {_last_program_start(folder, order).pid})


def _env_tags(run_id: str, node: str) -> Set[str]:
    return {f"RUNNER_RUN_ID={run_id}", f"RUNNER_NODE={node}"}


def find_leftovers(
    folder: RunPaths, run_id: str, node: str
) -> Tuple[Callable[[], List[int]], cgroup.Cgroup]:
    """Return what lists the processes of a run without a supervisor, and its last cgroup.

    This includes processes that outlived SIGKILL, and those of a run whose order never arrived.
    """
    order = read_order(folder)
    if order is None:
        return RunProcesses(_env_tags(run_id, node), set()).scan, cgroup.Cgroup()
    processes = run_processes(folder, order)
    last_cgroup = cgroup.from_record(
        _last_program_start(folder, order).cgroup, run_id, node, order.attempt
    )
    stuck = _unkillable(folder) if run_owner.is_from_this_boot(folder) else []

    def list_pids() -> List[int]:
        return [
            *processes.scan(),
            *(pid for pid, start in stuck if procfs.start_ticks_of(pid) == start),
        ]

    return list_pids, last_cgroup


def _unkillable(folder: RunPaths) -> List[Tuple[int, int]]:
    """Return the processes on record as survivors of SIGKILL, and when each started."""
    suspended_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    processes = []
    for event in read_events(folder):
        if isinstance(event.body, Ended):
            for pid in event.body.survivors:
                start = procfs.start_ticks_of(pid)
                if 0 <= start / os.sysconf("SC_CLK_TCK") <= event.mono + suspended_s:
                    processes.append((pid, start))
    return processes


def _last_program_start(folder: RunPaths, order: Order) -> ProgramStarted:
    """Return the record of the program's last start."""
    for event in reversed(read_events(folder)):
        if isinstance(event.body, ProgramStarted) and event.attempt == order.attempt:
            return event.body
    return ProgramStarted(0)
