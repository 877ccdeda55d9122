"""Sampler: the load of this host as the kernel counts it, and of its devices.

Of the host only files of /proc and /sys that the kernel answers from its own memory, so that
nothing waits for a disk. A cgroup makes no difference: it is the load of the whole machine. Network
file systems are no disks; they are part of the network's load.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

from runner.core.model.samples import Sample
from runner.host.process import procfs
from runner.host.sampling.devices import DeviceAnswer, DeviceChild, has_devices

SECTOR = 512  # bytes, whatever the disk's own
RAM_DISKS = ("loop", "ram", "zram")
_INFINIBAND_TYPE = "32"  # /sys/class/net/NAME/type

Pair = Tuple[int, int]


class Sampler:
    """Takes samples; rates are means of the time since the sample before, or since it was made.

    The cards and disks that count are those that are there when it is made.
    """

    def __init__(self, node: str, attempt: int = 0, root: str = "/") -> None:
        self._node = node
        self._attempt = attempt
        self._root = root
        self._devices = DeviceChild() if has_devices() else None
        self._cards = self._find_cards()
        self._disks = self._find_disks()
        self._counted_at = time.monotonic()
        self._counted = self._count(None)

    @property
    def child_pids(self) -> FrozenSet[int]:
        """Our own helper, also one that hangs in the kernel."""
        return self._devices.pids if self._devices else frozenset()

    def poll(self) -> Optional[Sample]:
        """Return a sample of now; None while the drivers are asked, who have `ANSWER_S`."""
        answer = self._devices.poll() if self._devices else DeviceAnswer()
        if answer is None:
            return None
        return Sample(
            self._node,
            self._attempt,
            round(time.time(), 3),
            gpus=answer.gpus,
            gpu_error=answer.error,
            **self._load(answer.rdma),
        )

    def close(self) -> None:
        """End the helper."""
        if self._devices is not None:
            self._devices.close()

    def _load(self, rdma_bytes: Optional[Pair]) -> Dict[str, Any]:
        """Return the fields of a `Sample` about the host itself."""
        before = self._counted
        began = self._counted_at
        self._counted_at = time.monotonic()
        self._counted = self._count(rdma_bytes)
        seconds = self._counted_at - began
        grown = {what: _grown(before[what], now) for what, now in self._counted.items()}
        net = grown["net"]
        rdma = grown["rdma"]
        if rdma:  # /proc/net/dev knows nothing of it
            net = (net[0] + rdma[0], net[1] + rdma[1]) if net else rdma
        received, sent = _rates(net, seconds)
        read, written = _rates(grown["disk"], seconds)
        used, total = self._memory()
        busy, ticks = grown["cpu"] or (0, 0)
        return {
            "cores": os.cpu_count(),
            "cpu": round(min(100.0, 100 * busy / ticks), 1) if ticks else None,
            "memory_used": used,
            "memory_total": total,
            "net_received": received,
            "net_sent": sent,
            "disk_read": read,
            "disk_written": written,
        }

    def _count(self, rdma_bytes: Optional[Pair]) -> Dict[str, Optional[Pair]]:
        """Return what the kernel has counted since the boot; None where it does not say."""
        cpu = None
        words = self._read("proc/stat").partition("\n")[0].split()
        if words[:1] == ["cpu"]:
            ticks = [int(word) for word in words[1:9]]  # guests are part of user and nice
            idle = ticks[3] + ticks[4]  # waiting for a disk is no work
            cpu = (sum(ticks) - idle, sum(ticks))
        net = _sum(self._net_bytes(), self._cards)
        disk = _sum(self._disk_bytes(), self._disks)
        return {"cpu": cpu, "net": net, "disk": disk, "rdma": rdma_bytes}

    def _memory(self) -> Tuple[Optional[int], Optional[int]]:
        """Return what is used, and all; what programs can still get without swapping is free."""
        sizes: Dict[str, int] = {}
        for line in self._read("proc/meminfo").splitlines()[:8]:
            name, size = line.split()[:2]
            sizes[name] = int(size) << 10
        total = sizes.get("MemTotal:")
        available = sizes.get("MemAvailable:")
        if total is None or available is None:
            return None, total
        return max(0, total - available), total

    def _net_bytes(self) -> Dict[str, Pair]:
        sizes: Dict[str, Pair] = {}
        for line in self._read("proc/net/dev").splitlines()[2:]:
            name, _, rest = line.partition(":")
            words = rest.split()
            sizes[name.strip()] = (int(words[0]), int(words[8]))
        return sizes

    def _disk_bytes(self) -> Dict[str, Pair]:
        sizes: Dict[str, Pair] = {}
        for line in self._read("proc/diskstats").splitlines():
            words = line.split()
            sizes[words[2]] = (int(words[5]) * SECTOR, int(words[9]) * SECTOR)
        return sizes

    def _find_cards(self) -> List[str]:
        """Return the interfaces whose bytes are on a wire, each byte once.

        These are the cards; in a network namespace without one, all but loopback. IP over
        InfiniBand is among what the ports of InfiniBand count.
        """
        names = [name for name in self._net_bytes() if name != "lo"]
        folder = "sys/class/net"
        cards = [name for name in names if os.path.exists(self._path(f"{folder}/{name}/device"))]
        if not cards:
            return names
        types = {name: self._read(f"{folder}/{name}/type").strip() for name in cards}
        return [name for name in cards if types[name] != _INFINIBAND_TYPE]

    def _find_disks(self) -> List[str]:
        """Return the whole disks; volumes and arrays are on others, which count."""
        return [
            name
            for name in procfs.list_names(self._path("sys/block"))
            if not name.startswith(RAM_DISKS)
            and not procfs.list_names(self._path(f"sys/block/{name}/slaves"))
        ]

    def _path(self, path: str) -> str:
        return os.path.join(self._root, path)

    def _read(self, path: str) -> str:
        return procfs.read_text(self._path(path))


def _sum(sizes: Dict[str, Pair], names: Sequence[str]) -> Optional[Pair]:
    chosen = [sizes[name] for name in names if name in sizes]
    return (sum(size[0] for size in chosen), sum(size[1] for size in chosen)) if sizes else None


def _grown(before: Optional[Pair], now: Optional[Pair]) -> Optional[Pair]:
    """Return by how much two counters grew; None if they were set back, as by a removed card."""
    if before is None or now is None or now[0] < before[0] or now[1] < before[1]:
        return None
    return now[0] - before[0], now[1] - before[1]


def _rates(grown: Optional[Pair], seconds: float) -> Tuple[Optional[float], Optional[float]]:
    if grown is None or seconds <= 0:
        return None, None
    return round(grown[0] / seconds, 1), round(grown[1] / seconds, 1)
