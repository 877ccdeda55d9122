"""Orphan search: the processes that a run left when its supervisor and guardian died."""

from __future__ import annotations

import os
import signal
import time
from typing import AbstractSet, Dict, List, Set, Tuple

from runner.host.process import procfs

RECENT_PIDS = 8
"""How many of the newest pids are read again between two full scans, for processes that fork so
fast that a scan misses them."""

FREEZE_TIMEOUT_S = 2.0
"""How long to try to stop (SIGSTOP) all of them before they are killed anyway."""

_INERT_STATES = "TtDZX"
"""Process states that cannot fork: stopped, traced, in the kernel, gone."""


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
        excluded = _ancestors(os.getpid(), processes)
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
        members = {
            pid for pid, process in processes.items() if (pid, process.start_ticks) in self._members
        }
        tagged = {
            pid
            for pid, process in processes.items()
            if process.alive and pid not in members and procfs.has_env(pid, self._env_tags, process)
        }
        leaderless = self._sessions | (
            self._session_leaders & {processes[pid].session for pid in tagged}
        )
        leaderless -= {pid for pid in leaderless if pid in processes and processes[pid].alive}
        self._sessions |= leaderless
        orphans = {pid for pid, process in processes.items() if process.session in leaderless}
        return list(members | tagged | orphans)


def _ancestors(pid: int, processes: Dict[int, procfs.Process]) -> Set[int]:
    """Return a process and its ancestors."""
    ancestors: Set[int] = set()
    while pid in processes and pid not in ancestors:
        ancestors.add(pid)
        pid = processes[pid].ppid
    return ancestors
