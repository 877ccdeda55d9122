"""The shipped task `fsdp`, by hand under plain torchrun: losses, and checkpoints in new worlds."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.by_hand import TASKS, assert_same, python, torchrun
from tests.lab.training import ROUNDING, progress, train

pytestmark = [pytest.mark.torch, pytest.mark.documents("docs/tasks.md")]

SCRIPT = str(TASKS / "fsdp.py")
FEW = ("--log_every=1", "--seed=3")


@dataclass
class Trained:
    """The losses of some steps, and the checkpoint after them."""

    losses: list[float]
    folder: Path


@pytest.fixture(scope="module")
def six_steps(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """By two ranks."""
    folder = tmp_path_factory.mktemp("fsdp") / "new" / "state"
    done = torchrun(2, SCRIPT, *FEW, "--steps=6", f"--checkpoint={folder}")
    return Trained(progress(done.stdout, 6), folder)


def train_unsharded(steps: int) -> list[float]:
    """Return the losses of the whole model and whole batches in this process."""
    import torch  # noqa: PLC0415 - only the tests that run may need it
    from torch.nn.functional import cross_entropy  # noqa: PLC0415

    from runner.tasks import fsdp as task  # noqa: PLC0415

    model = task.build_model(3)
    args = Namespace(seed=3, batch_size=96)

    def compute_loss(step: int) -> torch.Tensor:
        samples, labels = task.load_batch(step, args)
        return cross_entropy(model(samples), labels)

    return train(compute_loss, torch.optim.AdamW(model.parameters(), 0.003), steps)


def load(folder: Path, aside: Path) -> dict[str, Any]:
    """Read a checkpoint as a whole, by torch's own converter."""
    import torch  # noqa: PLC0415
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: PLC0415

    dcp_to_torch_save(folder, aside)
    state: dict[str, Any] = torch.load(aside, weights_only=True)
    return state


def test_losses_are_the_unsharded_ones(six_steps: Trained) -> None:
    """Of each step: all gradients and AdamW's moments have a part in the last one."""
    expected = train_unsharded(6)

    assert six_steps.losses == pytest.approx(expected, abs=ROUNDING)
    assert expected[-1] < 0.5 * expected[0]


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.all)])
def test_another_world_size_reads_the_same_state(
    six_steps: Trained, tmp_path: Path, ranks: int
) -> None:
    """Bit by bit: parameters, the optimizer's moments, step and loss; each rank wrote a file."""
    again = tmp_path / "again"
    flags = (*FEW, "--steps=6", f"--resume={six_steps.folder}", f"--checkpoint={again}")
    out = python(SCRIPT, *flags).stdout if ranks == 1 else torchrun(ranks, SCRIPT, *flags).stdout

    assert out == f"loss {six_steps.losses[-1]:.4f} after 6 steps\n"
    assert len(list(six_steps.folder.glob("*.distcp"))) == 2
    assert len(list(again.glob("*.distcp"))) == ranks
    one = load(six_steps.folder, tmp_path / "one.pt")
    assert_same(one, load(again, tmp_path / "other.pt"))
    assert (one["step"], len(one["model"]), len(one["optimizer"]["state"])) == (6, 20, 20)


@pytest.mark.all
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_resumed_training_goes_on_as_if_unbroken(six_steps: Trained, ranks: int) -> None:
    """The losses are those of twelve unsharded steps in a row."""
    done = torchrun(ranks, SCRIPT, *FEW, "--steps=12", f"--resume={six_steps.folder}")

    assert progress(done.stdout, 12) == pytest.approx(train_unsharded(12)[6:], abs=ROUNDING)


@pytest.mark.all
def test_mixed_precision_is_near_and_not_equal() -> None:
    """bfloat16 has 8 bits: a loss is off by less than its rounding, and not by nothing."""
    done = torchrun(2, SCRIPT, *FEW, "--steps=6", "--mixed_precision")

    losses, expected = progress(done.stdout, 6), train_unsharded(6)
    assert losses == pytest.approx(expected, abs=2**-7)
    assert losses != pytest.approx(expected, abs=10 * ROUNDING)
