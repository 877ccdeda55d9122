"""Crash recovery: end the processes of a run whose supervisor died, and complete its record.

The guardian recovers its own supervisor's run; an agent recovers a run that lost both.
"""

from __future__ import annotations

import os
import signal
import time
from typing import AbstractSet, Callable, List, Mapping, Optional, Set, Tuple

from runner.core.wire.events import Ended, RankExited, Stopping
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.core.wire.states import Reason, ReasonKind, State
from runner.host.container import remove_container
from runner.host.process import procfs, subreaper
from runner.host.process.pid_namespace import ContainerProcesses
from runner.host.process.subreaper import kill_until_gone
from runner.host.storage import run_folder, run_owner
from runner.host.storage.run_folder import EventLog, has_ended, read_events

FREEZE_TIMEOUT_S = 2.0  # how long to try to stop (SIGSTOP) all of them before they are killed


def finalise_record(
    folder: RunPaths,
    order: Order,
    problem: str,
    processes: Optional[RunProcesses] = None,
    *,
    verified: bool = True,
    environ: Mapping[str, str] = os.environ,
) -> bool:
    """Kill what a dead supervisor left, and complete the record; return whether that is proven.

    It left `processes`, or if they are None what this process inherited. `verified` tells whether
    their end proves that nothing of the run is left. Engines of containers are asked in `environ`.
    """
    list_alive = subreaper.own_descendants if processes is None else processes.scan
    reap = subreaper.reap_all if processes is None else None
    stopped_at = time.monotonic()
    inside = ContainerProcesses(procfs.env_tags(order.run_id, order.node))

    def list_all() -> List[int]:
        in_container = inside.scan(procfs.table()) if order.container else []
        return list(dict.fromkeys([*list_alive(), *in_container]))

    killed, survivors, is_proven = kill_until_gone(list_all, reap)
    container = None if order.is_standby else order.container
    unproven = remove_container(container, environ)
    journal = EventLog(folder, order)
    reason = Reason(ReasonKind.SUPERVISOR, order.node, detail=problem)
    journal.append(Stopping(reason), mono=stopped_at)
    record_exits(folder, order, journal)
    state = State.STUCK if survivors else State.FAILED
    verified = verified and is_proven and not unproven
    end = Ended(state, reason, len(killed), survivors, verified, unproven=unproven)
    journal.finalise(end)
    return verified and not survivors


def record_exits(folder: RunPaths, order: Order, journal: EventLog) -> None:
    """Record how ranks ended by their shims, where a dead supervisor has not done so."""
    bodies = [event.body for event in read_events(folder) if event.attempt == order.attempt]
    recorded_exits = {(body.rank, body.start) for body in bodies if isinstance(body, RankExited)}
    attempt_folder = folder.attempt_folder(order.attempt)
    for kind, rank, data in run_folder.read_rank_records(attempt_folder, set()):
        if kind == "exit" and (rank, data["start"]) not in recorded_exits:
            journal.append_exit(rank, data)


def recover_unfinished(folder: RunPaths) -> None:
    """Complete the record of a run without a supervisor, as after a power cut."""
    order = run_folder.read_order(folder)
    if order is not None and not has_ended(folder, order):
        recover_orphaned(folder, order)


def recover_orphaned(folder: RunPaths, order: Order) -> None:
    """Kill what is left when supervisor and guardian are both gone, and complete the record.

    The end is verified by the engine of a container, by a boot since then, or where no owner is on
    record: a process can clear the tags in its environment and leave its ancestors.
    """
    processes = RunProcesses(procfs.env_tags(order.run_id, order.node))
    processes.freeze()
    owner = run_owner.read(folder)
    has_rebooted = owner is not None and owner.is_here and not owner.is_from_this_boot
    was_started = os.path.lexists(folder.owner_file)  # without an owner nothing is
    reason = "its supervisor and its guardian died; what was left of it was killed"
    if not read_events(folder):
        reason = "its start was cut off"
    by_engine = order.container is not None and bool(order.container.engine)
    verified = has_rebooted or not was_started or by_engine
    finalise_record(folder, order, reason, processes, verified=verified)


def find_leftovers(folder: RunPaths, run_id: str, node: str) -> Callable[[], List[int]]:
    """Return what lists the processes of a run without a supervisor.

    This includes processes that outlived SIGKILL, and those of a run whose order never arrived.
    """
    processes = RunProcesses(procfs.env_tags(run_id, node))
    owner = run_owner.read(folder)
    stuck = _unkillable(folder) if owner is not None and owner.is_from_this_boot else []

    def list_pids() -> List[int]:
        alive = [pid for pid, start in stuck if procfs.start_ticks_of(pid) == start]
        return [*processes.scan(), *alive]

    return list_pids


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


class RunProcesses:
    """The processes with the environment tags of a run, and their descendants.

    One that was found stays one when it has lost its parent. Names are not used.
    """

    def __init__(self, env_tags: AbstractSet[str]) -> None:
        self._env_tags = env_tags
        self._found: Set[Tuple[int, int]] = set()  # pid and start of each, in the last scan

    def scan(self) -> List[int]:
        """Return the living processes, children first."""
        processes = procfs.table()
        excluded = set()  # ourselves, and who has started us
        ancestor = os.getpid()
        while ancestor in processes and ancestor not in excluded:
            excluded.add(ancestor)
            ancestor = processes[ancestor].ppid
        members: Set[int] = set()
        for pid, process in processes.items():
            was_found = (pid, process.start_ticks) in self._found
            if pid in excluded or pid in members:
                continue
            if was_found or procfs.has_env(pid, self._env_tags, process):
                members.update([pid, *procfs.descendants(pid, processes)])
        members -= excluded
        self._found = {(pid, processes[pid].start_ticks) for pid in members}
        living = [pid for pid in members if processes[pid].alive]
        return sorted(living, key=lambda pid: (processes[pid].start_ticks, pid), reverse=True)

    def freeze(self) -> None:
        """Stop all of them, so that killing one leaves no orphan that is not known."""
        deadline = time.monotonic() + FREEZE_TIMEOUT_S
        stopped: Set[int] = set()
        newcomers = {*self.scan()}
        while newcomers and time.monotonic() < deadline:
            stopped |= procfs.signal_all(newcomers, signal.SIGSTOP)
            newcomers = {*self.scan()} - stopped
