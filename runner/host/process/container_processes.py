"""Container processes: found in the kernel's list, by their PID namespace, not by an engine.

A process of a container is a child of a daemon or of no one of ours, and has another number inside.
It can clear its environment and leave its parents; it cannot leave its PID namespace.
"""

from __future__ import annotations

from typing import AbstractSet, Dict, List, Mapping, Set, Tuple

from runner.host.process import procfs
from runner.host.process.pid_namespace import inner_pid, namespace_of


class ContainerProcesses:
    """The processes of a container whose first ones have `env_tags` in their environment.

    The kernel gives the inode of a namespace to the next one as soon as it is free, so a namespace
    is known by its processes: one that was in it before and lives, or else one with the tags.
    """

    def __init__(self, env_tags: AbstractSet[str]) -> None:
        self._env_tags = env_tags
        self._own = namespace_of()
        self._known: Set[Tuple[int, int]] = set()  # pid and start of each, in the last scan

    def scan(self, table: Mapping[int, procfs.Process]) -> List[int]:
        """Return those that are alive, of the processes in a table, children first.

        The first process of a namespace ends by itself after the others, which die with it: it is
        returned only where it is left alone.
        """
        inside: Dict[int, Dict[int, procfs.Process]] = {}
        for pid, process in table.items():
            namespace = namespace_of(pid)
            if namespace not in (0, self._own) and process.alive:
                inside.setdefault(namespace, {})[pid] = process
        known, self._known = self._known, set()
        found: List[int] = []
        for members in inside.values():
            identities = {(pid, process.start_ticks) for pid, process in members.items()}
            if identities & known or self._any_tagged(members):
                self._known |= identities
                found += members
        found = [pid for pid in found if inner_pid(pid) != 1] or found
        return sorted(found, key=lambda pid: (table[pid].start_ticks, pid), reverse=True)

    def _any_tagged(self, members: Mapping[int, procfs.Process]) -> bool:
        return any(procfs.has_env(pid, self._env_tags, each) for pid, each in members.items())
