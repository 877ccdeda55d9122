"""ResNet-18 by hand: what plain torchrun makes of the shipped task, with nothing of the runner."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.by_hand import TASKS, assert_same, python, torchrun
from tests.lab.launching import PROGRAMS

pytestmark = pytest.mark.tasks


SCRIPT = str(TASKS / "resnet18.py")
FEW = (str(PROGRAMS / "few_digits.py"), SCRIPT)
"""The training with 240 images, and 60 for the test."""

FEW_STEPS = "--batch_size=42"  # five per epoch, for 1, 2, 3 and 7 ranks
RUN_OF = "world size {}, backend gloo, device cpu"


def train(ranks: int, *flags: str) -> list[str]:
    return torchrun(ranks, *FEW, *flags).stdout.splitlines()


@dataclass
class Epoch:
    lines: list[str]
    path: Path


@pytest.fixture(scope="module")
def one_epoch(tmp_path_factory: pytest.TempPathFactory) -> Epoch:
    """One epoch by three ranks: two numbers add up alike in any order."""
    path = tmp_path_factory.mktemp("one") / "new" / "digits.pt"
    return Epoch(train(3, FEW_STEPS, "--epochs=1", f"--checkpoint={path}"), path)


def epochs(lines: list[str]) -> list[str]:
    return [line.split("  ")[0] for line in lines if line.startswith("epoch ")]


def test_resumed_training_is_the_same_training(one_epoch: Epoch, tmp_path: Path) -> None:
    """An epoch and one more after a resume give, bit for bit, what two in a row give."""
    whole, resumed = tmp_path / "whole.pt", tmp_path / "resumed.pt"
    train(3, FEW_STEPS, "--epochs=2", f"--checkpoint={whole}")
    lines = train(
        3, FEW_STEPS, "--epochs=2", f"--resume={one_epoch.path}", f"--checkpoint={resumed}"
    )

    assert epochs(lines) == ["epoch 2/2"]
    two = load(whole)
    assert (two["epoch"], len(two["model"]), len(two["optimizer"]["state"])) == (2, 122, 62)
    assert_same(two, load(resumed))
    with pytest.raises(AssertionError):
        assert_same(two, load(one_epoch.path))


def load(path: Path) -> dict[str, Any]:
    import torch  # noqa: PLC0415 - only the tests that run may need it

    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def test_only_rank_0_speaks_and_leaves_one_file(one_epoch: Epoch) -> None:
    """It tells where it runs, steps, epochs, and the result; the checkpoint lies alone."""
    first, progress, epoch, last = one_epoch.lines
    assert first == RUN_OF.format(3)
    told = json.loads(progress)
    assert (told["step"], told["steps"], told["unit"]) == (5, 5, "images")
    assert 0 < told["loss"] < 5
    assert told["rate"] > 0
    assert re.fullmatch(r"epoch 1/1  loss \d\.\d{4}  test accuracy \d+\.\d\d %  \d+\.\d s", epoch)
    assert re.fullmatch(
        r"final test accuracy \d+\.\d\d % \(\d+/60\), trained 1 epochs in \d+\.\d s", last
    )
    assert [file.name for file in one_epoch.path.parent.iterdir()] == ["digits.pt"]


def test_missed_target_is_exit_code_1(one_epoch: Epoch) -> None:
    """A test accuracy below the target is a failure, told in one line after the others."""
    done = python(SCRIPT, "--epochs=1", f"--resume={one_epoch.path}", "--target_accuracy=100")

    assert (done.returncode, done.stderr) == (1, "")
    last = done.stdout.splitlines()[-1]
    assert last == "test accuracy is below the target of 100.0 %"
