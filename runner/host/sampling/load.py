"""Load of this host as the kernel counts it: cores, memory, network interfaces and disks.

Only files of /proc and /sys that the kernel answers from its own memory, so that nothing waits for
a disk. A cgroup makes no difference: it is the load of the whole machine. Network file systems are
no disks; they are part of the network's load.
"""

from __future__ import annotations

import os
import time
from typing import Callable, Collection, Dict, Iterable, NamedTuple, Optional, Tuple

from runner.host.process import procfs

SECTOR = 512  # bytes, whatever the disk's own
RAM_DISKS = ("loop", "ram", "zram")
_INFINIBAND_TYPE = "32"  # /sys/class/net/NAME/type

_Device = Tuple[str, Tuple[int, int]]  # its name, "" for none, and its bytes in and out
_Parser = Callable[[str], _Device]


class Counters(NamedTuple):
    """What the kernel has counted since the boot; None where it does not say."""

    mono: float
    cpu: Optional[Tuple[int, int]] = None  # busy, and all, in ticks of all cores
    net: Optional[Tuple[int, int]] = None  # bytes received and sent
    disk: Optional[Tuple[int, int]] = None  # bytes read and written


class HostLoad(NamedTuple):
    """The load; names and units are those of `Sample`."""

    cores: Optional[int]
    cpu: Optional[float]
    memory_used: Optional[int]
    memory_total: Optional[int]
    net_received: Optional[float]
    net_sent: Optional[float]
    disk_read: Optional[float]
    disk_written: Optional[float]


class LoadReader:
    """Reads the load since its last reading; the first one began when it was made."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._counted: Dict[str, Dict[str, bool]] = {"net": {}, "block": {}}
        self._last = self._read_counters()

    def read(self) -> HostLoad:
        """Return the load now; rates are means of the time since the last reading."""
        last, now = self._last, self._read_counters()
        self._last = now
        seconds = now.mono - last.mono
        busy, all_ticks = _growth(last.cpu, now.cpu)
        cpu = None
        if busy is not None and all_ticks:
            cpu = round(min(100.0, 100 * busy / all_ticks), 1)
        memory = _memory(procfs.read_text(self._path("proc/meminfo")))
        net, disk = (
            [_rate(grown, seconds) for grown in _growth(*pair)]
            for pair in ((last.net, now.net), (last.disk, now.disk))
        )
        return HostLoad(os.cpu_count(), cpu, *memory, *net, *disk)

    def _path(self, path: str) -> str:
        return os.path.join(self._root, path)

    def _read_counters(self) -> Counters:
        stat = procfs.read_text(self._path("proc/stat"))
        net = procfs.read_text(self._path("proc/net/dev"))
        disk = procfs.read_text(self._path("proc/diskstats"))
        return Counters(
            time.monotonic(),
            _cpu_ticks(stat),
            self._sum("net", net, _interface_bytes),
            self._sum("block", disk, _disk_bytes),
        )

    def _sum(self, kind: str, text: str, parse: _Parser) -> Optional[Tuple[int, int]]:
        """Sum what counts; whether a device does is looked up when it is new."""
        devices, counted = dict(map(parse, text.splitlines())), self._counted[kind]
        devices.pop("", None)
        if not devices:
            return None
        if devices.keys() != counted.keys():
            chosen = (self._interfaces if kind == "net" else self._disks)(devices)
            counted = self._counted[kind] = {name: name in chosen for name in devices}
        used = [size for name, size in devices.items() if counted[name]]
        return sum(size for size, _ in used), sum(size for _, size in used)

    def _interfaces(self, names: Iterable[str]) -> Collection[str]:
        """Return the interfaces whose bytes are on a wire, each byte once.

        These are the cards; in a network namespace without one all but loopback. IP over
        InfiniBand is among what the ports of InfiniBand count.
        """
        folder = self._path("sys/class/net")
        real = [name for name in names if os.path.exists(os.path.join(folder, name, "device"))]
        types = {
            name: procfs.read_text(os.path.join(folder, name, "type")).strip() for name in real
        }
        cards = [name for name in real if types[name] != _INFINIBAND_TYPE]
        return cards if real else [name for name in names if name != "lo"]

    def _disks(self, names: Iterable[str]) -> Collection[str]:
        """Return the whole disks; volumes and arrays are on others, which count."""
        folder, found = self._path("sys/block"), []
        for name in names:
            path = os.path.join(folder, name)
            is_on_others = bool(procfs.list_names(os.path.join(path, "slaves")))
            if os.path.exists(path) and not (name.startswith(RAM_DISKS) or is_on_others):
                found.append(name)
        return found


def _cpu_ticks(stat: str) -> Optional[Tuple[int, int]]:
    words = stat.partition("\n")[0].split()
    if words[:1] != ["cpu"] or len(words) < 6:
        return None
    ticks = [int(word) for word in words[1:9]]  # guests are part of user and nice
    idle = ticks[3] + ticks[4]  # waiting for a disk is no work
    return sum(ticks) - idle, sum(ticks)


def _memory(meminfo: str) -> Tuple[Optional[int], Optional[int]]:
    """Return what is used, and all; what programs can still get without swapping is free."""
    sizes: Dict[str, int] = {}
    for line in meminfo.splitlines()[:8]:
        name, _, rest = line.partition(":")
        if rest.split()[1:] == ["kB"]:
            sizes[name] = int(rest.split()[0]) << 10
    total, available = sizes.get("MemTotal"), sizes.get("MemAvailable")
    if total is None or available is None:
        return None, total
    return max(0, total - available), total


def _interface_bytes(line: str) -> _Device:
    name, _, rest = line.partition(":")
    words = rest.split()
    if len(words) < 9 or "|" in name:
        return "", (0, 0)
    return name.strip(), (int(words[0]), int(words[8]))


def _disk_bytes(line: str) -> _Device:
    words = line.split()
    if len(words) < 10:
        return "", (0, 0)
    return words[2], (int(words[5]) * SECTOR, int(words[9]) * SECTOR)


def _growth(
    before: Optional[Tuple[int, int]], now: Optional[Tuple[int, int]]
) -> Tuple[Optional[int], Optional[int]]:
    """Return by how much two counters grew; None if they were set back, as by a removed card."""
    if before is None or now is None:
        return None, None
    first, second = now[0] - before[0], now[1] - before[1]
    return first if first >= 0 else None, second if second >= 0 else None


def _rate(grown: Optional[int], seconds: float) -> Optional[float]:
    return None if grown is None or seconds <= 0 else round(grown / seconds, 1)
