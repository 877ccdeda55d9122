"""What the machine has beside its GPUs, and how much of it is taken; read in a moment."""

from __future__ import annotations

import os
import re
from typing import Dict, FrozenSet, List, Optional, Set, Tuple

from runner.core.model.hardware import System
from runner.host.process import cgroup, procfs

UNLIMITED = 1 << 60
"""Version 1 writes a number of about 2**63 for no limit."""


def read_system(root: str = "/") -> System:
    """Return it; no file of it is of a disk."""
    meminfo = _read_meminfo(root)
    load = procfs.read_text(os.path.join(root, "proc/loadavg")).split()
    swap_total, swap_free = meminfo.get("SwapTotal"), meminfo.get("SwapFree")
    return System(
        cpus=len(
            _parse_cpu_list(procfs.read_text(os.path.join(root, "sys/devices/system/cpu/online")))
        ),
        load=float(load[0]) if load else None,
        memory=meminfo.get("MemTotal"),
        memory_free=meminfo.get("MemAvailable"),
        memory_limit=memory_limit(root),
        swapped=None if swap_total is None or swap_free is None else swap_total - swap_free,
        numa_nodes=_numa_nodes(frozenset(os.sched_getaffinity(0)), root),
        infiniband=tuple(_list_folder(os.path.join(root, "sys/class/infiniband"))),
    )


def memory_limit(root: str = "/") -> Optional[int]:
    """Return the bytes that our cgroups leave us, the least of them all; None for no limit."""
    found_limits: List[int] = []
    for folder in cgroup.ancestors("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            word = procfs.read_text(os.path.join(folder, name)).strip()
            found_limits += [int(word)] if word.isdigit() and int(word) < UNLIMITED else []
    return min(found_limits, default=None)


def _read_meminfo(root: str) -> Dict[str, int]:
    text = procfs.read_text(os.path.join(root, "proc/meminfo"))
    rows = re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)
    return {name: int(number) << 10 for name, number in rows}


def _numa_nodes(own_cpus: FrozenSet[int], root: str) -> Tuple[int, ...]:
    """Return the NUMA nodes that some of these cores belong to."""
    folder = os.path.join(root, "sys/devices/system/node")
    nodes = [name[4:] for name in _list_folder(folder) if re.fullmatch(r"node\d+", name)]
    cpu_lists = {
        int(n): procfs.read_text(os.path.join(folder, f"node{n}", "cpulist")) for n in nodes
    }
    return tuple(
        sorted(node for node, text in cpu_lists.items() if own_cpus & _parse_cpu_list(text))
    )


def _parse_cpu_list(text: str) -> FrozenSet[int]:
    """Return the numbers in a list of the kernel's, like "0-3,8"."""
    cpus: Set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _list_folder(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
