"""The launches of `make gpu`, on the CPU of this machine, and what is said of one that fails."""

from __future__ import annotations

import contextlib
import math
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


def test_a_check_that_fails_says_why(launch: LocalLauncher) -> None:
    """Command, exit code, and the end of what `why` says of the run."""
    words = ("task.command=[sh,-c,exit 3]", "task.entry=plain")
    with pytest.raises(pytest.fail.Exception) as failure:
        launch(*words, gpus=0)
    first, command, why = str(failure.value).split("\n\n", 2)
    assert first == "exit code 1: first failure: rank 0 on local exited with 3"
    assert command.startswith("runner task.command=[sh,-c,exit 3] task.entry=plain cluster.")
    assert "local  rank 0 exited with 3; 0 processes left" in why


def test_a_loss_that_is_no_number_fails() -> None:
    """Of a comparison with it, `max` would take no notice."""
    expected = [{"step": step, "loss": 1.0} for step in range(12)]
    found = [dict(line) for line in expected]
    found[5]["loss"] = math.nan
    assert worst_difference(expected, expected) == 0
    with pytest.raises(AssertionError, match="'step': 5"):
        worst_difference(found, expected)


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
