"""Watchdog of ranks: what GPUs do, by their samples, and when a run stands still."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from runner.core.protocol.events import ProgressResumed, Stalled
from runner.core.protocol.paths import RunPaths
from runner.host.gpu import activity
from runner.host.gpu.activity import GpuActivity
from runner.host.process import procfs
from runner.host.ranks import stacks
from runner.host.supervisor.stall_monitor import Watchdog
from tests.golden.builders import plan

if TYPE_CHECKING:
    from runner.host.storage.run_folder import EventLog


@pytest.mark.parametrize(
    ("samples", "doing"),
    [
        pytest.param([[(100, 0)], [(99, 0)]], GpuActivity.WAITING, id="one that polls"),
        pytest.param(
            [[(100, 0), (0, 0)], [(100, 0), (2, 0)]], GpuActivity.IDLE_OR_UNKNOWN, id="one is idle"
        ),
        pytest.param(
            [[(100, 0), (80, 9)], [(100, 0), (90, 3)]], GpuActivity.WORKING, id="beside work"
        ),
        pytest.param([[(100, 0)], [(100, 12)]], GpuActivity.WORKING, id="work now and then"),
        pytest.param(
            [[(100, 0), None], [(100, 0), None]], GpuActivity.WAITING, id="beside a lost one"
        ),
        pytest.param([], GpuActivity.IDLE_OR_UNKNOWN, id="the driver tells nothing"),
    ],
)
def test_what_gpus_do(samples: list[list[tuple[int, int] | None]], doing: GpuActivity) -> None:
    """Work touches memory; a kernel that polls for others does not."""
    assert activity.classify(samples) is doing


class Noted:
    """A journal, and the clock of a watchdog."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.now = 1000.0

    def append(self, body: Any) -> None:
        self.bodies.append(body)

    def monotonic(self) -> float:
        return self.now


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
    monkeypatch.setattr(stacks, "start_dump", lambda *_, **__: Dump())
    monkeypatch.setattr(stacks, "result", lambda _: ("then", ""))
    monkeypatch.setattr(activity, "start", lambda _: None)
    monkeypatch.setattr(procfs, "table", dict)
    return noted


def dog(noted: Noted, *, stops: bool = False) -> Watchdog:
    order = replace(plan(1).node("a").order, stall_s=40.0, stop_on_stall=stops)
    return Watchdog(RunPaths("/w", "r", "a"), order, cast("EventLog", noted))


def test_a_standstill_is_on_record_once_and_ends_when_something_moves(noted: Noted) -> None:
    """And when nobody can tell, nothing is judged."""
    watching = dog(noted)
    for still in (39.0, 40.0, 41.0, None, 80.0, 1.0, None, 2.0):
        assert not watching.check(still)
    assert noted.bodies == [Stalled(40.0, dump_time="then"), ProgressResumed()]


def test_a_run_is_stopped_after_the_others_had_their_time(noted: Noted) -> None:
    """And only if nothing moves here at that moment."""
    watching = dog(noted, stops=True)
    watching.sample({"rank_0.out": 1}, 1)
    assert not watching.check(41.0)
    assert not watching.check(41.0)
    for _ in range(9):
        noted.now += 5
        watching.sample({"rank_0.out": 1}, 1)
    assert watching.check(45.0)
    assert watching.reason == "no rank made progress for 45 s (watch.stall_s is 40)"
    watching.sample({"rank_0.out": 2}, 1)
    assert watching.reason == ""


def test_what_a_dump_causes_is_no_progress(noted: Noted) -> None:
    """A rank whose wait its signal cuts prints that; what it prints later is its own."""
    watching = dog(noted, stops=True)
    printed = 0

    def sample(*, prints: bool) -> float:
        nonlocal printed
        noted.now += 5
        printed += prints
        watching.sample({"rank_0.out": printed}, 1)
        return watching.stalled_s

    for _ in range(7):
        sample(prints=False)
    assert sample(prints=False) == 35
    watching.dump("asked for by ada")
    assert sample(prints=True) == 40
    assert not watching.check(40.0)  # both dumps were made at once
    assert sample(prints=True) == 45
    assert not watching.check(45.0)
    needed = [watching.needs_sample]
    noted.now += 2
    needed.append(watching.needs_sample)
    assert sample(prints=True) == 52
    assert [*needed, watching.needs_sample] == [False, True, False]
    assert watching.check(52.0)
    assert "52 s" in watching.reason
    assert sample(prints=True) == 0
    assert not watching.check(0.0)
    assert noted.bodies == [Stalled(40.0, stops_run=True, dump_time="then"), ProgressResumed()]


def test_a_freeze_of_the_machine_is_no_standstill(noted: Noted) -> None:
    """Samples that are far apart: we stood still ourselves, or the disk did not answer."""
    watching = dog(noted)
    for _ in range(3):
        watching.sample({}, 1)
        noted.now += 5
    assert watching.stalled_s == 10
    noted.now += 100
    assert watching.stalled_s == 10
    watching.sample({}, 1)
    assert watching.stalled_s == 0


def test_where_steps_are_written_down_only_they_count(noted: Noted, tmp_path: Path) -> None:
    """A rank that prints and computes for ever makes none."""
    order = replace(plan(1).node("a").order, stall_s=40.0, metrics=("*.jsonl",), cwd=str(tmp_path))
    folder = RunPaths(str(tmp_path), "r", "a")
    log = Path(folder.stream_log(order.attempt, "rank_0", "out"))
    log.parent.mkdir(parents=True)
    watching = Watchdog(folder, order, cast("EventLog", noted))
    (tmp_path / "metrics.jsonl").write_text("1\n")
    log.write_text("1\n")
    watching.sample(watching.progress_sizes(), 1)
    noted.now += 9
    log.write_text("1\n2\n")
    watching.sample(watching.progress_sizes(), 1)
    assert watching.stalled_s == 9
    (tmp_path / "metrics.jsonl").write_text("1\n2\n")
    watching.sample(watching.progress_sizes(), 1)
    assert watching.stalled_s == 0


def test_what_ranks_write_shows_progress_but_not_their_stacks(tmp_path: Path) -> None:
    """They are dumped by us."""
    order = replace(plan(1).node("a").order, stall_s=40.0)
    folder = RunPaths(str(tmp_path), "r", "a")
    for source, stream in (("rank_0", "out"), ("rank_0", "metrics"), ("stacks", "out")):
        log = Path(folder.stream_log(order.attempt, source, stream))
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("1\n")
    sizes = Watchdog(folder, order, cast("EventLog", None)).progress_sizes()
    assert {Path(path).name for path in sizes} == {"rank_0.out", "rank_0.metrics"}
