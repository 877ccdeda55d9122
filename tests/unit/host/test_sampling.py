"""Samples of a host: the load, the child for GPUs, and the recorder, which no mishap stops."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.host import sampling
from runner.host.gpu import query
from runner.host.process.jobs import run_now
from runner.host.sampling import GpuAnswer, GpuChild, Sampler, SampleRecorder

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


def test_a_child_says_that_it_cannot_be_started_and_can_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of it stays open."""
    monkeypatch.setattr(query, "has_driver", lambda: True)
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


INTERVAL_S = 5.0


class Ticking:
    def __init__(self, folder: RunPaths, submit: Callable[..., None], **changes: Any) -> None:
        self.now = 1000.0
        self._file = Path(folder.samples(0))
        order = Order("r1", "n1", 0, "", "", **{"sample_s": INTERVAL_S, **changes})
        self._recorder = SampleRecorder(folder, order, submit)

    def monotonic(self) -> float:
        return self.now

    def pass_intervals(self, count: int) -> None:
        """Call the recorder as the loop of a supervisor does, at every second."""
        for _ in range(count * int(INTERVAL_S)):
            self.now += 1.0
            self._recorder.tick()

    def lines(self) -> int:
        return len(self._file.read_bytes().splitlines()) if self._file.exists() else 0


Make = Callable[..., Ticking]


@pytest.fixture
def folder(tmp_path: Path) -> RunPaths:
    folder = RunPaths(str(tmp_path), "r1", "n1")
    Path(folder.attempt_folder(0)).mkdir(parents=True)
    return folder


@pytest.fixture
def make(folder: RunPaths, monkeypatch: pytest.MonkeyPatch) -> Make:
    def made(submit: Callable[..., None] = run_now, **changes: Any) -> Ticking:
        clock.monotonic = clock.time = lambda: 1000.0
        ticking = Ticking(folder, submit, **changes)
        clock.monotonic = clock.time = ticking.monotonic
        return ticking

    clock = SimpleNamespace()
    monkeypatch.setattr(sampling, "time", clock)
    monkeypatch.setattr(query, "has_driver", lambda: False)
    return made


def test_while_a_disk_does_not_answer_nothing_piles_up(make: Make) -> None:
    """One sample waits; the others are left out."""
    jobs: list[Callable[[], str]] = []
    make(lambda job, *_: jobs.append(job)).pass_intervals(10)
    assert len(jobs) == 1


def test_a_folder_that_cannot_be_written_ends_it(
    make: Make, folder: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said once, in the log of the supervisor."""
    Path(folder.attempt_folder(0)).rmdir()
    make().pass_intervals(5)
    assert capsys.readouterr().err == "no more samples: No such file or directory\n"


def test_the_interval_doubles_when_the_file_is_full(
    make: Make, monkeypatch: pytest.MonkeyPatch, folder: RunPaths
) -> None:
    """Every second sample goes; the first one stays."""
    monkeypatch.setattr(sampling, "MAX_SAMPLE_FILE", 2000)
    ticking = make()
    ticking.pass_intervals(1)
    first = Path(folder.samples(0)).read_bytes()
    ticking.pass_intervals(200)
    content = Path(folder.samples(0)).read_bytes()
    assert content.startswith(first)
    assert len(content) <= 2000
    before = ticking.lines()
    ticking.pass_intervals(8)
    assert ticking.lines() <= before + 1
