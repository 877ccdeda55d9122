"""The series `single`, `data_parallel`, `ddp`: one training, by hand, with the same numbers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.by_hand import EXAMPLES, python, torchrun
from tests.lab.launching import PROGRAMS

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = pytest.mark.tasks


EPOCHS = "--epochs=2"
STEPS = 58
RESULT = re.compile(r"test loss (\d\.\d{4}), test accuracy (\d+\.\d\d) % after (\d+) steps")


@dataclass
class Training:
    """What one training printed, and by rank the gradients of its steps and how often averaged."""

    lines: list[str]
    gradients: list[list[list[Tensor]]]
    averaged: list[list[int]]

    @property
    def result(self) -> list[float]:
        """Test loss, test accuracy in percent, and steps."""
        found = RESULT.fullmatch(self.lines[-1])
        assert found, self.lines
        return [float(number) for number in found.groups()]

    @property
    def progress(self) -> list[dict[str, Any]]:
        """The lines of progress."""
        return [json.loads(line) for line in self.lines[1:-1]]


def train(folder: Path, name: str, *flags: str, ranks: int = 0) -> Training:
    """Train with torchrun, or for no ranks without."""
    import torch  # noqa: PLC0415 - only the tests that run may need it

    folder.mkdir()
    script = (str(PROGRAMS / "gradients.py"), str(folder), str(EXAMPLES / f"{name}.py"))
    done = torchrun(ranks, *script, *flags) if ranks else python(*script, *flags)
    assert done.returncode == 0, done
    kept = [torch.load(path) for path in sorted(folder.glob("rank_*.pt"))]
    gradients, averaged = zip(*kept, strict=True)
    return Training(done.stdout.splitlines(), list(gradients), list(averaged))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the trainings of this file write."""
    return tmp_path_factory.mktemp("series")


@pytest.fixture(scope="module")
def single(folder: Path) -> Training:
    """Two epochs on one device."""
    return train(folder / "single", "single", EPOCHS)


@pytest.fixture(scope="module")
def ddp(folder: Path) -> Training:
    """The same by two ranks, each of which takes its images of a step in two parts."""
    flags = (EPOCHS, "--accumulate=2", f"--checkpoint={folder / 'new' / 'ddp.pt'}")
    return train(folder / "ddp", "ddp", *flags, ranks=2)


def test_one_device_learns(single: Training) -> None:
    """From ln 10, the loss of a guess, to under 0.5 on images that it has not seen."""
    loss, accuracy, steps = single.result
    assert loss < 0.5
    assert accuracy > 85
    assert steps == len(single.gradients[0]) == STEPS
    assert single.lines[0] == "one process, device cpu"
    for line, step in zip(single.progress, (20, 40, 58), strict=True):
        assert line.keys() == {"step", "steps", "loss", "rate", "unit"}
        assert (line["step"], line["steps"], line["unit"]) == (step, STEPS, "images")
        assert line["rate"] > 0


def test_data_parallel_is_the_same_training(folder: Path, single: Training) -> None:
    """Where there is no GPU it says so in a line, and its losses are those of one device."""
    parallel = train(folder / "data_parallel", "data_parallel", EPOCHS)

    assert "no GPU: nn.DataParallel calls the model as it is, on the CPU" in parallel.lines[0]
    losses = [line["loss"] for line in parallel.progress]
    assert losses == pytest.approx([line["loss"] for line in single.progress], abs=2e-4)
    assert parallel.result == pytest.approx(single.result, abs=2e-4)


def test_gradients_are_those_of_the_joined_batch(single: Training, ddp: Training) -> None:
    """In every step equal on all ranks, and to rounding what one process finds for all images."""
    import torch  # noqa: PLC0415

    assert ddp.lines[0] == "world size 2, backend gloo, device cpu"
    (alone,), (one, other) = single.gradients, ddp.gradients
    assert len(alone) == len(one) == len(other) == STEPS
    for step, gradients in enumerate(alone):
        for mine, theirs, expected in zip(one[step], other[step], gradients, strict=True):
            assert torch.equal(mine, theirs), step
            torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6, msg=f"step {step}")
    assert [(line["step"], line["loss"]) for line in ddp.progress] == [
        (line["step"], pytest.approx(line["loss"], abs=2e-4)) for line in single.progress
    ]
    assert ddp.result == pytest.approx(single.result, abs=2e-4)


def test_gradients_are_averaged_once_per_step(single: Training, ddp: Training) -> None:
    """Also where a rank takes its images in two parts: the first of them leaves it out."""
    assert ddp.averaged == [[1] * STEPS] * 2
    assert single.averaged == [[0] * STEPS]


def test_a_checkpoint_is_gone_on_from(folder: Path, ddp: Training) -> None:
    """One epoch by one rank, one by two ranks that find its checkpoint: they say so; same end."""
    import torch  # noqa: PLC0415

    path = folder / "resumed.pt"
    train(folder / "begun", "ddp", "--epochs=1", f"--checkpoint={path}")
    rest = train(folder / "rest", "ddp", EPOCHS, f"--checkpoint={path}", ranks=2)

    assert rest.lines[1] == f"goes on after epoch 1 of 2, from {path}"
    assert [len(steps) for steps in rest.gradients] == [STEPS / 2, STEPS / 2]
    assert rest.result == pytest.approx(ddp.result, abs=2e-4)
    whole, resumed = torch.load(folder / "new" / "ddp.pt"), torch.load(path)
    assert whole["epoch"] == 2
    assert [file.name for file in (folder / "new").iterdir()] == ["ddp.pt"]
    torch.testing.assert_close(resumed, whole, rtol=1e-4, atol=1e-5)
