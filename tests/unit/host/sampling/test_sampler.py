"""The load of a host, from files of /proc and /sys as machines have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.host.gpu import query
from runner.host.sampling.sampler import Sampler

GIB = 1 << 30


def put(root: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = root / "proc" / name.replace("_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def count(root: Path, ticks: str, net: dict[str, int], disk: dict[str, int]) -> None:
    """Write what the kernel has counted: as many bytes out as in."""
    head = "Inter-|   Receive                 |  Transmit\n face |bytes packets|bytes packets\n"
    rows = [f"{name:>6}: {size} 1 0 0 0 0 0 0 {size} 1 0 0 0 0 0 0\n" for name, size in net.items()]
    disks = [f"   8 0 {name} 1 2 {s // 512} 3 4 5 {s // 512} 7 0 8 9\n" for name, s in disk.items()]
    put(root, stat=f"cpu  {ticks}\ncpu0 1 2 3\n", net_dev=head + "".join(rows))
    put(root, diskstats="".join(disks))


def device(root: Path, path: str, *names: str) -> None:
    for name in names:
        (root / "sys" / path / name).mkdir(parents=True)


def test_bytes_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bonds, bridges and volumes are made of what counts already; loops are no disks."""
    device(tmp_path, "class/net/eth0", "device")
    device(tmp_path, "class/net/eth1", "device")
    device(tmp_path, "block/sda", "device")
    device(tmp_path, "block/dm-0", "slaves")
    device(tmp_path, "block/loop0", "queue")
    net = {"lo": 9 << 40, "eth0": 1000, "eth1": 500, "bond0": 1500, "docker0": 700, "veth1": 7}
    disk = {"sda": 512000, "sda1": 512000, "dm-0": 512000, "loop0": 5120}
    count(tmp_path, "100 0 100 800 0 0 0 0 0 0", dict.fromkeys(net, 0), dict.fromkeys(disk, 0))
    put(tmp_path, meminfo=f"MemTotal: {64 << 20} kB\nMemFree: 5 kB\nMemAvailable: {16 << 20} kB\n")

    monkeypatch.setattr(query, "has_driver", lambda: False)
    mine = Sampler("n1", root=str(tmp_path))
    count(tmp_path, "150 0 120 860 70 0 0 0 0 0", net, disk)
    load = mine.poll()

    assert load
    assert load.cpu == 35.0  # waiting for a disk is no work
    assert (load.memory_used, load.memory_total) == (48 * GIB, 64 * GIB)
    assert load.net_received
    assert load.disk_read
    assert load.net_received / load.disk_read == pytest.approx(1500 / 512000)
    assert (load.net_sent, load.disk_written) == (load.net_received, load.disk_read)
