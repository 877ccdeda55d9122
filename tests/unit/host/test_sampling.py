"""Samples of a host: from files of /proc as machines have them, and by the child for GPUs."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runner.host.gpu import query
from runner.host.sampling import GpuAnswer, GpuChild, Sampler

GIB = 1 << 30

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


def test_a_child_says_that_it_cannot_be_started_and_can_be_closed() -> None:
    """Nothing of it stays open."""
    child = GpuChild()
    with descriptors_left(1):
        before = [*OPEN_FILES.iterdir()]
        answer = child.poll()
        after = [*OPEN_FILES.iterdir()]
        child.close()

    assert answer == GpuAnswer(error="no process can ask the driver: Too many open files")
    assert len(after) == len(before)


def test_the_load_is_that_since_the_sample_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for a disk is no work; what programs can still get is free."""
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text(
        f"MemTotal: {64 << 20} kB\nMemFree: 5 kB\nMemAvailable: {16 << 20} kB\n"
    )
    (proc / "stat").write_text("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 2 3\n")
    monkeypatch.setattr(query, "has_driver", lambda: False)
    mine = Sampler("n1", root=str(tmp_path))
    (proc / "stat").write_text("cpu  150 0 120 860 70 0 0 0 0 0\ncpu0 1 2 3\n")
    load = mine.poll()

    assert load
    assert load.cpu == 35.0
    assert (load.memory_used, load.memory_total) == (48 * GIB, 64 * GIB)
    again = mine.poll()
    assert again
    assert again.cpu is None, "no tick has passed"
