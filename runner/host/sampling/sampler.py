"""Sampler: the load of this host as the kernel counts it, and of its GPUs.

Of the host only files of /proc that the kernel answers from its own memory, so that nothing waits
for a disk. A cgroup makes no difference: it is the load of the whole machine. Network file systems
are no disks; they are part of the network's load.
"""

from __future__ import annotations

import os
import time
from typing import Dict, FrozenSet, Iterator, Optional, Tuple

from runner.core.model.samples import Sample
from runner.host.gpu import query
from runner.host.process import procfs
from runner.host.sampling.gpus import GpuAnswer, GpuChild

SECTOR = 512  # bytes, whatever the disk's own
RATES = ("net_received", "net_sent", "disk_read", "disk_written")

Table = Tuple[str, int, int, int]
"""A file with a device on each line, and the columns of its name and of what came in and out."""

NET: Table = ("proc/net/dev", 0, 1, 9)  # in bytes
DISKS: Table = ("proc/diskstats", 2, 5, 9)  # in sectors


class Sampler:
    """Takes samples; rates are means of the time since the sample before, or since it was made.

    The cards and disks that count are those that are there when it is made: hardware, which bonds,
    bridges and volumes are made of. Where no card is, as in a network namespace, all interfaces
    but loopback count.
    """

    def __init__(self, node: str, attempt: int = 0, root: str = "/") -> None:
        self._node = node
        self._attempt = attempt
        self._root = root
        self._gpus = GpuChild() if query.has_driver() else None
        interfaces = [name for name, *_ in self._counters(NET) if name != "lo"]
        cards = [name for name in interfaces if self._is_hardware(f"sys/class/net/{name}")]
        self._cards = cards or interfaces
        disks = procfs.list_names(os.path.join(root, "sys/block"))
        self._disks = [name for name in disks if self._is_hardware(f"sys/block/{name}")]
        self._counted = self._count()

    @property
    def child_pids(self) -> FrozenSet[int]:
        """Our own helper, also one that hangs in the kernel."""
        return self._gpus.pids if self._gpus else frozenset()

    def poll(self) -> Optional[Sample]:
        """Return a sample of now; None while the driver is asked, who has `ANSWER_S`."""
        answer = self._gpus.poll() if self._gpus else GpuAnswer()
        if answer is None:
            return None
        before = self._counted
        self._counted = self._count()
        grown = {name: count - before.get(name, count) for name, count in self._counted.items()}
        rates: Dict[str, float] = {}
        for name in RATES:
            if grown[name] >= 0 and grown["seconds"] > 0:  # a card that is removed sets it back
                rates[name] = round(grown[name] / grown["seconds"], 1)
        memory: Dict[str, int] = {}
        for line in self._read("proc/meminfo").splitlines()[:8]:
            name, size = line.split()[:2]
            memory[name] = int(size) << 10
        total = memory.get("MemTotal:", 0)
        free = memory.get("MemAvailable:")  # what programs can still get without swapping
        share = grown["busy"] / grown["ticks"] if grown.get("ticks") else None
        return Sample(
            self._node,
            self._attempt,
            round(time.time(), 3),
            cores=os.cpu_count(),
            cpu=None if share is None else round(100 * min(1.0, max(0.0, share)), 1),
            memory_used=None if free is None else max(0, total - free),
            memory_total=total or None,
            gpus=answer.gpus,
            gpu_error=answer.error,
            **rates,
        )

    def close(self) -> None:
        """End the helper."""
        if self._gpus is not None:
            self._gpus.close()

    def _count(self) -> Dict[str, float]:
        """Return what the kernel has counted since the boot."""
        counted: Dict[str, float] = {"seconds": time.monotonic()}
        words = self._read("proc/stat").partition("\n")[0].split()
        ticks = [int(word) for word in words[1:9]]  # guests are part of user and nice
        if ticks:
            counted["ticks"] = sum(ticks)
            counted["busy"] = sum(ticks) - ticks[3] - ticks[4]  # waiting for a disk is no work
        net = [counter for counter in self._counters(NET) if counter[0] in self._cards]
        counted["net_received"] = sum(received for _, received, _ in net)
        counted["net_sent"] = sum(sent for _, _, sent in net)
        disks = [counter for counter in self._counters(DISKS) if counter[0] in self._disks]
        counted["disk_read"] = sum(read for _, read, _ in disks) * SECTOR
        counted["disk_written"] = sum(written for _, _, written in disks) * SECTOR
        return counted

    def _counters(self, table: Table) -> Iterator[Tuple[str, int, int]]:
        """Yield each device, and how much came in and out since the boot."""
        path, name, received, sent = table
        for line in self._read(path).splitlines():
            words = line.replace(":", " ").split()
            if len(words) > sent and words[sent].isdigit():  # no headers
                yield words[name], int(words[received]), int(words[sent])

    def _is_hardware(self, folder: str) -> bool:
        return os.path.exists(os.path.join(self._root, folder, "device"))

    def _read(self, path: str) -> str:
        return procfs.read_text(os.path.join(self._root, path))
