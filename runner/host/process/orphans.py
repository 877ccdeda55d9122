"""What is left of a run on a host when nobody watched any more: found by marks and by blood."""

from __future__ import annotations

import os
import signal
import time
from typing import AbstractSet, Dict, List, Set, Tuple

from runner.host.process import procfs

HASTY = 8
"""So many of the newest pids are looked at again between two looks at all: some fork so fast that
they are never where one looks."""

HOLD_S = 2.0
"""How long to try to stop them all before they are killed as they are."""

_QUIET = "TtDZX"
"""Process states in which nothing is forked: stopped, traced, in the kernel, gone."""


class Family:
    """The processes that carry the marks of a run, and those that descend from them.

    A descendant may have cleared its environment, and its parent may be gone. Then its session
    tells: nobody can join one but by birth. Names tell nothing, and are not looked at.
    """

    def __init__(self, marks: AbstractSet[str], leaders: AbstractSet[int]) -> None:
        """Begin with the `marks`, and the pids on record of those who led sessions of the run."""
        self._marks = marks
        self._leaders = leaders - {0}  # sessions led from outside our PID namespace are all 0
        self._known: Set[Tuple[int, int]] = set()
        self._sessions: Set[int] = set()

    def look(self) -> List[int]:
        """Return those who live, children first; once seen, one stays a member."""
        processes = self._look()
        return sorted(processes, key=lambda pid: (processes[pid].start, pid), reverse=True)

    def hold(self) -> None:
        """Stop them all: who is killed first can leave no orphans that nobody knows."""
        end = time.monotonic() + HOLD_S
        stopped: Set[int] = set()
        quiet = 0
        while quiet < 2 and time.monotonic() < end:
            found = self._look()
            new = set(found) - stopped
            stopped |= procfs.send(new, signal.SIGSTOP)
            hasty = [pid for pid in procfs.newest(HASTY) if procfs.has_marks(pid, self._marks)]
            stopped |= procfs.send(set(hasty) - stopped, signal.SIGSTOP)
            restless = new or [p for p in found.values() if p.state not in _QUIET]
            quiet = 0 if restless else quiet + 1
            time.sleep(0.002)

    def _look(self) -> Dict[int, procfs.Process]:
        processes = procfs.table()
        children: Dict[int, List[int]] = {}
        sessions: Dict[int, List[int]] = {}
        for pid, process in processes.items():
            children.setdefault(process.ppid, []).append(pid)
            sessions.setdefault(process.session, []).append(pid)
        never = _line_of(os.getpid(), processes)
        queue = self._seeds(processes)
        found: Set[int] = set()
        while queue:
            pid = queue.pop()
            if pid in found or pid in never:
                continue
            found.add(pid)
            queue += children.get(pid, ())
            queue += sessions.get(pid, ())
        self._known = {(pid, processes[pid].start) for pid in found}
        self._sessions = {pid for pid in sessions if pid in found or pid in self._sessions}
        return {pid: processes[pid] for pid in found if processes[pid].alive}

    def _seeds(self, processes: Dict[int, procfs.Process]) -> List[int]:
        """Return known and marked ones, and who is in a session of theirs whose leader is gone."""
        known = {pid for pid, process in processes.items() if (pid, process.start) in self._known}
        marked = {
            pid
            for pid, process in processes.items()
            if process.alive and pid not in known and procfs.carries(pid, process, self._marks)
        }
        headless = self._sessions | (self._leaders & {processes[pid].session for pid in marked})
        headless -= {pid for pid in headless if pid in processes and processes[pid].alive}
        self._sessions |= headless
        orphans = {pid for pid, process in processes.items() if process.session in headless}
        return list(known | marked | orphans)


def _line_of(pid: int, processes: Dict[int, procfs.Process]) -> Set[int]:
    """Return a process and all it descends from."""
    line: Set[int] = set()
    while pid in processes and pid not in line:
        line.add(pid)
        pid = processes[pid].ppid
    return line
