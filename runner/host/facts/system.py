"""What the machine has beside its GPUs, and how much of it is taken; read in a moment."""

from __future__ import annotations

import os
import re
from typing import Dict, FrozenSet, List, Optional, Set, Tuple

from runner.core.model.hardware import System
from runner.host.process import cgroup, procfs

UNLIMITED = 1 << 60
"""Version 1 writes a number of about 2**63 for no limit."""


def look(root: str = "/") -> System:
    """Return it; no file of it is of a disk."""
    memory = _memory(root)
    load = procfs.read_text(os.path.join(root, "proc/loadavg")).split()
    swap, unswapped = memory.get("SwapTotal"), memory.get("SwapFree")
    return System(
        cpus=len(_listed(procfs.read_text(os.path.join(root, "sys/devices/system/cpu/online")))),
        load=float(load[0]) if load else None,
        memory=memory.get("MemTotal"),
        memory_free=memory.get("MemAvailable"),
        memory_limit=memory_limit(root),
        swapped=None if swap is None or unswapped is None else swap - unswapped,
        numa=_numa(frozenset(os.sched_getaffinity(0)), root),
        infiniband=tuple(_names(os.path.join(root, "sys/class/infiniband"))),
    )


def memory_limit(root: str = "/") -> Optional[int]:
    """Return the bytes that our cgroups leave us, the least of them all; None for no limit."""
    limits: List[int] = []
    for folder in cgroup.up_the_tree("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            word = procfs.read_text(os.path.join(folder, name)).strip()
            limits += [int(word)] if word.isdigit() and int(word) < UNLIMITED else []
    return min(limits, default=None)


def _memory(root: str) -> Dict[str, int]:
    text = procfs.read_text(os.path.join(root, "proc/meminfo"))
    rows = re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)
    return {name: int(number) << 10 for name, number in rows}


def _numa(cores: FrozenSet[int], root: str) -> Tuple[int, ...]:
    """Return the NUMA nodes that some of these cores belong to."""
    folder = os.path.join(root, "sys/devices/system/node")
    nodes = [name[4:] for name in _names(folder) if re.fullmatch(r"node\d+", name)]
    lists = {int(n): procfs.read_text(os.path.join(folder, f"node{n}", "cpulist")) for n in nodes}
    return tuple(sorted(node for node, text in lists.items() if cores & _listed(text)))


def _listed(text: str) -> FrozenSet[int]:
    """Return the numbers in a list of the kernel's, like "0-3,8"."""
    found: Set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
