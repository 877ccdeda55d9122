"""The launches of `make gpu`, on the CPU of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.launching import LocalLauncher, plan_backend, progress
from tests.gpu.test_gpu import BANDWIDTH, RESNET18, SMOKE, TRAININGS, program, worst_difference

pytestmark = [pytest.mark.tasks]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[LocalLauncher]:
    with contextlib.closing(LocalLauncher(tmp_path, 0)) as launcher:
        yield launcher


@pytest.mark.parametrize("task", TRAININGS)
def test_trainings(launch: LocalLauncher, task: str) -> None:
    """Their losses are on record step by step, as the rows compare them."""
    run = launch(f"task={task}", *TRAININGS[task][1], gpus=0)
    assert plan_backend(run) == "gloo"
    assert worst_difference(progress(run), progress(run)) == 0


@pytest.mark.parametrize(
    "words",
    [
        SMOKE,
        (*BANDWIDTH, "task.args.min_bytes=1M", "task.args.max_bytes=1M"),
        (
            *RESNET18,
            "task.args.batch_size=480",
            "task.args.epochs=2",
            "task.args.target_accuracy=0",
        ),
        program("devices"),
    ],
    ids=["nccl", "bandwidth", "resnet18", "devices"],
)
def test_other_programs(launch: LocalLauncher, words: tuple[str, ...]) -> None:
    """They take their arguments, and succeed."""
    assert launch(*words, gpus=0).log("local", 0)
