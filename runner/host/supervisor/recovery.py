"""Crash recovery: end the processes of a run whose supervisor died, and complete its record.

The guardian recovers its own supervisor's run; an agent recovers a run that lost both.
"""

from __future__ import annotations

import glob
import os
import signal
import time
from typing import AbstractSet, Callable, Dict, List, Mapping, Set, Tuple

from runner.core.wire.events import Ended, ProgramStarted, RankExited, Stopping
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.core.wire.states import Reason, ReasonKind, State
from runner.host.container import remove_container
from runner.host.process import cgroup, procfs
from runner.host.process.kill import is_proven, kill_until_gone
from runner.host.process.pid_namespace import ContainerProcesses
from runner.host.storage import run_folder, run_owner
from runner.host.storage.run_folder import EventLog, has_ended, read_events

RECENT_PIDS = 8  # read again between two full scans, for processes that fork faster than those
FREEZE_TIMEOUT_S = 2.0  # how long to try to stop (SIGSTOP) all of them before they are killed
_INERT_STATES = "TtDZX"  # process states that cannot fork: stopped, traced, in the kernel, gone


def finalise_record(
    folder: RunPaths,
    order: Order,
    problem: str,
    list_alive: Callable[[], List[int]],
    *,
    verified: bool = True,
    reap: Callable[[], object] = list,
    all_gone: Callable[[], bool] = lambda: True,
    environ: Mapping[str, str] = os.environ,
) -> bool:
    """Kill what a dead supervisor left, and complete the record; return whether that is proven.

    `verified` tells whether an empty `list_alive` proves that nothing of the run is left; an empty
    cgroup, where the program had one, proves it too. For `reap` and `all_gone` see
    `kill_until_gone`; engines of containers are asked in `environ`.
    """
    stopped_at = time.monotonic()
    cgroup_path = _last_program_start(folder, order).cgroup
    program_cgroup = cgroup.from_record(cgroup_path, order.run_id, order.node, order.attempt)
    inside = ContainerProcesses(procfs.env_tags(order.run_id, order.node))

    def list_all() -> List[int]:
        in_container = inside.scan(procfs.table()) if order.container else []
        return list(dict.fromkeys([*list_alive(), *in_container]))

    killed, survivors = kill_until_gone(list_all, reap, cgroup=program_cgroup, all_gone=all_gone)
    container = None if order.is_standby else order.container
    unproven = remove_container(container, environ)
    journal = EventLog(folder, order)
    journal.reopen()
    reason = Reason(ReasonKind.SUPERVISOR, order.node, detail=problem)
    journal.append(Stopping(reason), mono=stopped_at)
    record_exits(folder, order, journal)
    state = State.STUCK if survivors else State.FAILED
    verified = verified or bool(program_cgroup.path)
    verified = verified and is_proven(program_cgroup, survivors, all_gone) and not unproven
    end = Ended(state, reason, len(killed), survivors, verified, unproven=unproven)
    journal.finalise(end)
    program_cgroup.remove()
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

    The end is verified by a cgroup, by the engine of a container, by a boot since then, or where
    neither an owner nor a start is on record: a process can clear the tags in its environment and
    leave its ancestors.
    """
    processes = run_processes(folder, order)
    processes.freeze()
    owner = run_owner.read(folder)
    rebooted = owner is not None and owner.from_earlier_boot
    was_started = os.path.lexists(folder.owner_file) or _has_started(folder)
    reason = "its supervisor and its guardian died; what was left of it was killed"
    if not read_events(folder):
        reason = "its start was cut off"
    by_engine = order.container is not None and bool(order.container.engine)
    verified = rebooted or not was_started or by_engine
    finalise_record(folder, order, reason, processes.scan, verified=verified)


def _has_started(folder: RunPaths) -> bool:
    """Return whether a program or a rank of the run is on record as started."""
    starts = glob.glob(os.path.join(glob.escape(folder.attempt_folder(0))[:-1] + "*", "*.start"))
    return bool(starts) or any(isinstance(e.body, ProgramStarted) for e in read_events(folder))


def run_processes(folder: RunPaths, order: Order) -> RunProcesses:
    """Return the processes of a run without a supervisor."""
    tags = procfs.env_tags(order.run_id, order.node)
    records = run_folder.read_rank_records(folder.attempt_folder(order.attempt), set())
    starts = [data for kind, _, data in records if kind == "start"]
    session_leaders = {int(data[name]) for data in starts for name in ("shim", "pid")}
    return RunProcesses(tags, session_leaders | {_last_program_start(folder, order).pid})


def find_leftovers(
    folder: RunPaths, run_id: str, node: str
) -> Tuple[Callable[[], List[int]], cgroup.Cgroup]:
    """Return what lists the processes of a run without a supervisor, and its last cgroup.

    This includes processes that outlived SIGKILL, and those of a run whose order never arrived.
    """
    order = run_folder.read_order(folder)
    if order is None:
        return RunProcesses(procfs.env_tags(run_id, node), set()).scan, cgroup.Cgroup()
    processes = run_processes(folder, order)
    cgroup_path = _last_program_start(folder, order).cgroup
    last_cgroup = cgroup.from_record(cgroup_path, run_id, node, order.attempt)
    owner = run_owner.read(folder)
    stuck = _unkillable(folder) if owner is not None and owner.from_this_boot else []

    def list_pids() -> List[int]:
        alive = [pid for pid, start in stuck if procfs.start_ticks_of(pid) == start]
        return [*processes.scan(), *alive]

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
    for event in reversed(read_events(folder)):
        if isinstance(event.body, ProgramStarted) and event.attempt == order.attempt:
            return event.body
    return ProgramStarted(0)


class RunProcesses:
    """The processes with the environment tags of a run, their descendants and their sessions.

    A descendant may have cleared its environment and lost its parent. Its session still identifies
    it: a process can only be born into one. Names are not used.
    """

    def __init__(self, env_tags: AbstractSet[str], session_leaders: AbstractSet[int]) -> None:
        """Search by `env_tags`, and by the pids on record that led sessions of the run."""
        self._env_tags = env_tags
        # 0 stands for every leader outside our PID namespace.
        self._session_leaders = session_leaders - {0}
        self._members: Set[Tuple[int, int]] = set()
        self._sessions: Set[int] = set()

    def scan(self) -> List[int]:
        """Return the living processes, children first; a member once found stays one."""
        processes = self._scan()
        return sorted(processes, key=lambda pid: (processes[pid].start_ticks, pid), reverse=True)

    def freeze(self) -> None:
        """Stop all of them, so that killing one leaves no orphan that is not known."""
        deadline = time.monotonic() + FREEZE_TIMEOUT_S
        stopped: Set[int] = set()
        quiet_rounds = 0
        while quiet_rounds < 2 and time.monotonic() < deadline:
            members = self._scan()
            newcomers = set(members) - stopped
            stopped |= procfs.signal_all(newcomers, signal.SIGSTOP)
            recent_pids = procfs.recent_pids(RECENT_PIDS)
            recent = [pid for pid in recent_pids if procfs.has_env(pid, self._env_tags)]
            stopped |= procfs.signal_all(set(recent) - stopped, signal.SIGSTOP)
            active = newcomers or [p for p in members.values() if p.state not in _INERT_STATES]
            quiet_rounds = 0 if active else quiet_rounds + 1
            time.sleep(0.002)

    def _scan(self) -> Dict[int, procfs.Process]:
        processes = procfs.table()
        children: Dict[int, List[int]] = {}
        sessions: Dict[int, List[int]] = {}
        for pid, process in processes.items():
            children.setdefault(process.ppid, []).append(pid)
            sessions.setdefault(process.session, []).append(pid)
        excluded = set()
        ancestor = os.getpid()
        while ancestor in processes and ancestor not in excluded:
            excluded.add(ancestor)
            ancestor = processes[ancestor].ppid
        queue = self._seeds(processes)
        members: Set[int] = set()
        while queue:
            pid = queue.pop()
            if pid in members or pid in excluded:
                continue
            members.add(pid)
            queue += children.get(pid, ())
            queue += sessions.get(pid, ())
        self._members = {(pid, processes[pid].start_ticks) for pid in members}
        self._sessions = {pid for pid in sessions if pid in members or pid in self._sessions}
        return {pid: processes[pid] for pid in members if processes[pid].alive}

    def _seeds(self, processes: Dict[int, procfs.Process]) -> List[int]:
        """Return known and tagged processes, and members of their sessions whose leader is gone."""
        members = {p for p, each in processes.items() if (p, each.start_ticks) in self._members}
        others = {p: each for p, each in processes.items() if each.alive and p not in members}
        tagged = {p for p, each in others.items() if procfs.has_env(p, self._env_tags, each)}
        tagged_sessions = {processes[pid].session for pid in tagged}
        leaderless = self._sessions | (self._session_leaders & tagged_sessions)
        leaderless -= {pid for pid in leaderless if pid in processes and processes[pid].alive}
        self._sessions |= leaderless
        orphans = {pid for pid, process in processes.items() if process.session in leaderless}
        return list(members | tagged | orphans)
