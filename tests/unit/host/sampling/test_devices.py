"""The child that asks drivers: what becomes of it where a process has no descriptors left."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.host.sampling.devices import DeviceAnswer, DeviceChild, rdma_bytes

OPEN_FILES = Path("/proc/self/fd")


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open so many more files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    probes = [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(probes) + 1, limits[1]))
    for probe in probes:
        os.close(probe)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_it_says_that_it_cannot_be_started_and_can_be_closed() -> None:
    """Nothing of it stays open."""
    child = DeviceChild()
    with descriptors_left(1):
        before = [*OPEN_FILES.iterdir()]
        answer = child.poll()
        after = [*OPEN_FILES.iterdir()]
        child.close()

    assert answer == DeviceAnswer(error="no process can ask the driver: Too many open files")
    assert len(after) == len(before)


def test_ports_of_infiniband_are_summed(tmp_path: Path) -> None:
    """A port that has no counters, as one of another kind, does not count."""
    cards = tmp_path / "sys/class/infiniband"
    (cards / "mlx5_2/ports/1").mkdir(parents=True)
    for number in (0, 1):
        counters = cards / f"mlx5_{number}/ports/1/counters"
        counters.mkdir(parents=True)
        (counters / "port_rcv_data").write_text("100\n")
        (counters / "port_xmit_data").write_text("25\n")

    assert rdma_bytes(str(tmp_path)) == (800, 200)
