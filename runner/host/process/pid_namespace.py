"""PID namespaces: the numbers that processes have in them, and the processes of a container.

Those can clear their environment and leave their parents, but not their PID namespace.
"""

from __future__ import annotations

import os
from typing import AbstractSet, Dict, List, Mapping, Set, Tuple

from runner.host.process import procfs

INITIAL = 0xEFFFFFFC
"""The namespace of the machine itself, in which the kernel's log names processes."""


def namespace_of(pid: object = "self") -> int:
    """Return the inode of the PID namespace of a process, 0 if that cannot be seen."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def outer_pid(pid: int, namespace: int, start_ticks: int) -> int:
    """Return our number of a process that has the number `pid` in its namespace, 0 for none.

    The namespace of another user's process is hidden: that is known by when it began.
    """
    if not namespace or namespace == namespace_of():
        return pid
    for each in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        seen = namespace_of(each)
        is_it = seen == namespace or (not seen and procfs.start_ticks_of(each) == start_ticks)
        if is_it and inner_pid(each) == pid:
            return each
    return 0


def inner_pid(pid: int) -> int:
    for line in procfs.read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return 0


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
        inside: Dict[int, List[int]] = {}
        for pid, process in table.items():
            namespace = namespace_of(pid)
            if namespace not in (0, self._own) and process.alive:
                inside.setdefault(namespace, []).append(pid)
        found: List[int] = []
        for pids in inside.values():
            is_known = any((pid, table[pid].start_ticks) in self._known for pid in pids)
            if is_known or any(procfs.has_env(pid, self._env_tags, table[pid]) for pid in pids):
                found += pids
        self._known = {(pid, table[pid].start_ticks) for pid in found}
        found = [pid for pid in found if inner_pid(pid) != 1] or found
        return sorted(found, key=lambda pid: (table[pid].start_ticks, pid), reverse=True)
