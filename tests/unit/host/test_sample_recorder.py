"""The recorder of samples, in the loop of a supervisor: nothing that goes wrong is the run's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.host import sampling
from runner.host.gpu import query
from runner.host.process.file_worker import run_now
from runner.host.sampling import SampleRecorder

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
