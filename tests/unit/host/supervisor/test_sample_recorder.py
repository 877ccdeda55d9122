"""The recorder of samples, in the loop of a supervisor: nothing that goes wrong is the run's."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.core.model.plan import Order
from runner.core.protocol.paths import RunPaths
from runner.host.process.file_worker import run_now
from runner.host.supervisor.sample_recorder import SampleRecorder
from tests.lab.waiting import wait_until

INTERVAL_S = 0.01


@pytest.fixture
def folder(tmp_path: Path) -> RunPaths:
    """The folder of a run."""
    folder = RunPaths(str(tmp_path), "r1", "n1")
    Path(folder.attempt_folder(0)).mkdir(parents=True)
    return folder


def recorder(folder: RunPaths, submit: Callable[..., None], **changes: Any) -> SampleRecorder:
    """Return one that takes samples often."""
    usual = {"argv": ("x",), "env": {}, "cwd": "", "ranks": (), "sample_s": INTERVAL_S}
    order = Order("r1", "n1", 0, "", **{**usual, **changes})
    return SampleRecorder(folder, order, submit)


def tick_for(made: SampleRecorder, seconds: float, *, is_running: bool = True) -> None:
    """Call it as the loop of a supervisor does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        made.tick(is_running=is_running)
        time.sleep(INTERVAL_S / 10)


def lines(folder: RunPaths) -> int:
    """Return how many samples are on record."""
    path = Path(folder.samples(0))
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def test_samples_begin_and_end_with_the_program(folder: RunPaths) -> None:
    """Before it and after it there are none."""
    made = recorder(folder, run_now)
    tick_for(made, 3 * INTERVAL_S, is_running=False)
    assert lines(folder) == 0

    def has_three() -> bool:
        made.tick(is_running=True)
        return lines(folder) >= 3

    wait_until(has_three, "samples", 10)
    tick_for(made, INTERVAL_S, is_running=False)
    count = lines(folder)
    tick_for(made, 3 * INTERVAL_S)
    assert lines(folder) == count


def test_while_a_disk_does_not_answer_nothing_piles_up(folder: RunPaths) -> None:
    """One sample waits; the others are left out."""
    jobs: list[Callable[[], str]] = []
    made = recorder(folder, lambda job, *_: jobs.append(job))

    def has_one() -> bool:
        made.tick(is_running=True)
        return bool(jobs)

    wait_until(has_one, "a sample", 10)
    tick_for(made, 10 * INTERVAL_S)
    assert len(jobs) == 1
    made.close()


def test_a_folder_that_cannot_be_written_ends_it(
    folder: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said once, in the log of the supervisor."""
    Path(folder.attempt_folder(0)).rmdir()
    made = recorder(folder, run_now)
    said: list[str] = []

    def is_said() -> bool:
        made.tick(is_running=True)
        said.append(capsys.readouterr().err)
        return any(said)

    wait_until(is_said, "the reason", 10)
    tick_for(made, 5 * INTERVAL_S)
    text = "".join((*said, capsys.readouterr().err))
    assert text == "no more samples: No such file or directory\n"


@pytest.mark.parametrize("changes", [{"argv": ()}, {"sample_s": 0.0}])
def test_spares_take_none(folder: RunPaths, changes: dict[str, Any]) -> None:
    """Nor does a run with `sample_s=off`."""
    tick_for(recorder(folder, run_now, **changes), 5 * INTERVAL_S)
    assert lines(folder) == 0
