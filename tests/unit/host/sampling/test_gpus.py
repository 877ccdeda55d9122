"""The child that asks the driver: what becomes of it where a process has no descriptors left."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.host.sampling.gpus import GpuAnswer, GpuChild

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
    child = GpuChild()
    with descriptors_left(1):
        before = [*OPEN_FILES.iterdir()]
        answer = child.poll()
        after = [*OPEN_FILES.iterdir()]
        child.close()

    assert answer == GpuAnswer(error="no process can ask the driver: Too many open files")
    assert len(after) == len(before)
