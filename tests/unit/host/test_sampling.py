"""Samples of a host, their recorder, which no mishap stops, and answers of the driver of GPUs."""

from __future__ import annotations

import itertools
import json
import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.core.wire.facts import Gpu, GpuProcess
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.host import sampling
from runner.host.gpu import nvml, query
from runner.host.process.bounded_child import REPORT_FD, BoundedChild
from runner.host.process.jobs import run_now
from runner.host.sampling import Sampler, SampleRecorder

GIB = 1 << 30


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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    monkeypatch.setattr(query, "has_driver", lambda: False)
    folder = RunPaths(str(tmp_path), "r1", "n1")
    Path(folder.attempt_folder(0)).mkdir(parents=True)
    return folder


Pass = Callable[..., None]


@pytest.fixture
def pass_intervals(folder: RunPaths, monkeypatch: pytest.MonkeyPatch) -> Pass:
    """Call a recorder as the loop of a supervisor does, at every second of so many intervals."""
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0])
    monkeypatch.setattr(sampling, "time", clock)

    def run(count: int, submit: Callable[..., None] = run_now) -> None:
        recorder = SampleRecorder(folder, Order("r1", "n1", 0, "", "", sample_s=INTERVAL_S), submit)
        for _ in range(count * int(INTERVAL_S)):
            now[0] += 1.0
            recorder.tick()

    return run


def test_while_a_disk_does_not_answer_nothing_piles_up(pass_intervals: Pass) -> None:
    """One sample waits; the others are left out."""
    jobs: list[Callable[[], str]] = []
    pass_intervals(10, lambda job, *_: jobs.append(job))
    assert len(jobs) == 1


def test_a_folder_that_cannot_be_written_ends_it(
    pass_intervals: Pass, folder: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said once, in the log of the supervisor."""
    Path(folder.attempt_folder(0)).rmdir()
    pass_intervals(5)
    assert capsys.readouterr().err == "no more samples: No such file or directory\n"


def test_the_file_grows_ever_more_slowly(
    pass_intervals: Pass, folder: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "SAMPLES_STEP", 1000)
    pass_intervals(200)
    lines = Path(folder.samples(0)).read_text().splitlines()
    walls = [json.loads(line)["wall"] for line in lines]
    apart = [later - earlier for earlier, later in itertools.pairwise(walls[1:])]
    assert apart == sorted(apart)
    assert {INTERVAL_S, 2 * INTERVAL_S, 4 * INTERVAL_S} <= {*apart}


def answered(report: bytes) -> dict[str, Any]:
    """What is made of the report of a child that hangs then."""

    def hang() -> None:
        os.write(REPORT_FD, report)
        signal.pause()

    child = BoundedChild(hang, 60)
    while not child.raw_report.endswith(report[-1:]):
        child.advance()
    child.kill()
    return query.result(child)


def test_the_last_word_about_the_gpus_counts() -> None:
    """Owners of processes come later than the processes, and may never come."""
    told = b'{"gpu 0": {"index": 0, "processes": [{"pid": 7}]}, "source": "nvml"}\n'
    named = told + b'{"gpu 0": {"index": 0, "processes": [{"pid": 7, "user": "ann"}]}}\n'
    for report, user in ((told + b'{"gpu 0": {', ""), (named, "ann")):
        found = answered(report)
        assert found["gpus"] == (Gpu(0, processes=(GpuProcess(7, user=user),)),)
        assert found["gpu_source"] == "nvml"


@pytest.mark.parametrize(
    ("layout", "rest"),
    [
        ("=IIQII", (0xFFFFFFFF, 0xFFFFFFFF)),  # _v2 and _v3
        ("=IIQIIQ", (0xFFFFFFFF, 0xFFFFFFFF, 0)),  # _v3 of driver 535.54
    ],
)
def test_the_length_of_a_process_record_is_measured(layout: str, rest: tuple[int, ...]) -> None:
    """However long it is, each pid keeps its memory; all ones is no 16 exabytes."""
    memory = (1 << 20, 5 << 20, (1 << 64) - 1)
    records = [struct.pack(layout, pid, 0, size, *rest) for pid, size in enumerate(memory)]
    buffer = b"".join(records).ljust(4096, bytes((0xAA,)))
    expected = (GpuProcess(0, 1 << 20), GpuProcess(1, 5 << 20), GpuProcess(2))
    assert nvml.parse_processes(buffer, 3) == expected
