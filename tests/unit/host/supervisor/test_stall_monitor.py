"""Watchdog of ranks: what GPUs do, when a run stands still, and when that is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.core.wire.events import ProgressResumed, Stalled
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.core.wire.run_info import GpuSample
from runner.core.wire.states import Reason
from runner.host.process import procfs
from runner.host.ranks import stacks
from runner.host.supervisor.stall_monitor import Progress, StallMonitor, gpus_work
from tests.golden.builders import plan


@pytest.mark.parametrize(
    ("gpus", "works"),
    [
        pytest.param([(100, 0)], False, id="one that polls"),
        pytest.param([(100, 0), (2, 0)], None, id="one is idle"),
        pytest.param([(100, 0), (80, 9)], True, id="beside work"),
        pytest.param([(100, 0), (None, None)], False, id="beside a lost one"),
        pytest.param([], None, id="the driver tells nothing"),
    ],
)
def test_what_gpus_do(gpus: list[tuple[int | None, int | None]], works: bool | None) -> None:
    """Work touches memory; a kernel that polls for others does not."""
    samples = [GpuSample(0, utilization=busy, memory_busy=used) for busy, used in gpus]
    assert gpus_work(samples) is works


def test_computing_is_no_progress_while_gpus_only_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the look at which all of them began to; any that works is progress."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    trusting = Progress(40.0, trusts_gpus=True)
    careful = Progress(40.0, trusts_gpus=False)
    standstills = []
    for busy, used in ((0, 0), (100, 0), (100, 0), (2, 0), (100, 0), (90, 9)):
        now += 10
        for progress in (trusting, careful):
            progress.last_sample = progress.last_activity = now  # it computes
            progress.look_at_gpus([GpuSample(0, utilization=busy, memory_busy=used)])
        standstills.append(trusting.standstill_s)
        assert careful.standstill_s == 0
    assert standstills == [0, 0, 10, 0, 0, 0]


class Noted:
    """What is around a monitor: a journal, a clock, a disk, and a launcher process."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.dumps: list[str] = []  # why each was made
        self.now = 1000.0
        self.sizes: dict[str, int] | None = None  # else those on the disk
        self.failures: list[Reason] = []

    def append(self, body: Any) -> None:
        self.bodies.append(body)

    def start_dump(self, _folder: RunPaths, _order: Order, reason: str) -> Dump:
        self.dumps.append(reason)
        return Dump()

    def monotonic(self) -> float:
        return self.now

    def submit(self, look: Callable[[], Any], then: Callable[[Any], None]) -> None:
        then(look() if self.sizes is None else self.sizes)

    def monitor(self, folder: str = "/w", **order: Any) -> StallMonitor:
        launcher = SimpleNamespace(is_running=True, exit_status=None, pid=1, container_pids=tuple)
        around: list[Any] = [self, launcher, None, self.submit, self.failures.append]
        own = replace(plan(1).node("a").order, stall_s=40.0, sample_s=0.0, **order)
        return StallMonitor(RunPaths(folder, "r", "a"), own, *around)


class Dump:
    """A child that has written the stacks down at once."""

    pid = 0
    code = 0

    def advance(self) -> None:
        """It has ended."""


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    """A watchdog's surroundings: nothing of them takes time."""
    noted = Noted()
    monkeypatch.setattr(time, "monotonic", noted.monotonic)
    monkeypatch.setattr(stacks, "start_dump", noted.start_dump)
    monkeypatch.setattr(stacks, "result", lambda _: ("then", ""))
    monkeypatch.setattr(procfs, "table", dict)
    return noted


def check(monitor: StallMonitor, stalled_s: float | None) -> None:
    monitor.check(stalled_s, is_stopping=False)


def test_a_standstill_is_on_record_once_and_ends_when_something_moves(noted: Noted) -> None:
    """And when nobody can tell, nothing is judged."""
    noted.sizes = {}
    monitor = noted.monitor()
    for still in (39.0, 40.0, 41.0, None, 80.0, 1.0, None, 2.0):
        check(monitor, still)
    assert noted.bodies == [Stalled(40.0, dump_time="then"), ProgressResumed()]
    assert not noted.failures


def test_a_run_is_stopped_after_the_others_had_their_time(noted: Noted) -> None:
    """And only if nothing moves here at that moment."""
    noted.sizes = {"rank_0.out": 1}
    monitor = noted.monitor(stop_on_stall=True)
    monitor.sample()
    for _ in range(9):
        noted.now += 5
        monitor.sample()
    for _ in range(3):  # it is noticed, dumped, and told
        check(monitor, 45.0)
    assert not noted.failures
    noted.now += 5
    noted.sizes = {"rank_0.out": 2}
    check(monitor, 50.0)
    noted.sizes = {"rank_0.out": 3}
    check(monitor, 50.0)
    assert not noted.failures
    for _ in range(9):
        noted.now += 5
        monitor.sample()
    check(monitor, 45.0)
    words = [reason.text for reason in noted.failures]
    assert words == ["no rank made progress for 45 s (watch.stall_s is 40)"]


def test_what_a_dump_causes_is_no_progress(noted: Noted) -> None:
    """A rank whose wait its signal cuts prints that; what it prints later is its own."""
    monitor = noted.monitor(stop_on_stall=True)
    noted.sizes = {"rank_0.out": 0}

    def sample(*, prints: bool) -> float:
        assert noted.sizes
        noted.now += 5
        noted.sizes = {"rank_0.out": noted.sizes["rank_0.out"] + prints}
        monitor.sample()
        return monitor.stalled_s

    for _ in range(8):
        assert sample(prints=False) < 40
    monitor.dump("asked for by ada")
    check(monitor, 39.0)
    assert sample(prints=True) == 40
    check(monitor, 40.0)
    check(monitor, 40.0)
    assert sample(prints=True) == 45
    check(monitor, 45.0)
    noted.now += 2
    check(monitor, 47.0)  # they have settled: what they print from now on is their own
    assert sample(prints=True) == 0
    check(monitor, 0.0)
    assert noted.bodies == [Stalled(40.0, stops_run=True, dump_time="then"), ProgressResumed()]
    assert not noted.failures


def test_who_asks_while_stacks_are_dumped_gets_the_next_dump(noted: Noted) -> None:
    """The one under way may be in the log already; one that waits is for all who ask."""
    noted.sizes = {}
    monitor = noted.monitor()
    monitor.dump("asked by a")
    check(monitor, 1.0)
    for name in "bc":
        monitor.dump(f"asked by {name}")
    assert not monitor.is_dumping, "no stop waits for that"
    for _ in range(3):
        check(monitor, 1.0)
    assert noted.dumps == ["asked by a", "asked by b"]


def test_a_freeze_of_the_machine_is_no_standstill(noted: Noted) -> None:
    """Samples that are far apart: we stood still ourselves, or the disk did not answer."""
    noted.sizes = {}
    monitor = noted.monitor()
    for _ in range(3):
        monitor.sample()
        noted.now += 5
    assert monitor.stalled_s == 10
    noted.now += 100
    assert monitor.stalled_s == 10
    monitor.sample()
    assert monitor.stalled_s == 0


def test_what_ranks_write_shows_progress_but_not_their_stacks(noted: Noted, tmp_path: Path) -> None:
    """They are dumped by us."""
    folder = RunPaths(str(tmp_path), "r", "a")
    for source, stream in (("rank_0", "out"), ("rank_0", "metrics"), ("stacks", "out")):
        log = Path(folder.stream_log(0, source, stream))
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("1\n")
    sizes = noted.monitor(str(tmp_path)).log_sizes()
    assert {*sizes} == {"rank_0.out", "rank_0.metrics"}
