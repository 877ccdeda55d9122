"""The shipped task `fsdp`, by hand under plain torchrun: losses, and checkpoints in new worlds."""

from __future__ import annotations

import shutil
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.by_hand import TASKS, assert_same, python, torchrun
from tests.lab.launching import PROGRAMS
from tests.lab.training import ROUNDING, progress, train

pytestmark = pytest.mark.tasks


SCRIPT = str(TASKS / "fsdp.py")
PROGRAM = str(PROGRAMS / "mesh_gradients.py")
FEW = ("--log_every=1", "--seed=3")


@dataclass
class Trained:
    """The losses of some steps, the checkpoint after them, and a file with the first gradients."""

    losses: list[float]
    folder: Path
    gradients: Path

    @property
    def saved(self) -> Path:
        """The one whole checkpoint in the folder."""
        (saved,) = self.folder.iterdir()
        return saved


@pytest.fixture(scope="module")
def six_steps(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """By two ranks."""
    folder = tmp_path_factory.mktemp("fsdp") / "new" / "state"
    path = folder.parents[1] / "gradients.pt"
    done = torchrun(2, PROGRAM, "fsdp", str(path), *FEW, "--steps=6", f"--checkpoint={folder}")
    return Trained(progress(done.stdout, 6), folder, path)


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
    assert expected[-1] < 0.6 * expected[0]


def test_gradients_are_the_unsharded_ones(six_steps: Trained) -> None:
    """Of the first batch, value by value: AdamW would not notice a wrong scale. Each has half."""
    import torch  # noqa: PLC0415
    from torch.nn.functional import cross_entropy  # noqa: PLC0415

    from runner.tasks import fsdp as task  # noqa: PLC0415

    model = task.build_model(3)
    samples, labels = task.load_batch(1, Namespace(seed=3, batch_size=96))
    cross_entropy(model(samples), labels).backward()  # type: ignore[no-untyped-call]
    found = torch.load(six_steps.gradients, weights_only=True)
    assert [2 * size for size in found["local"]] == [one.numel() for one in model.parameters()]
    gradients = [parameter.grad for parameter in model.parameters()]
    torch.testing.assert_close(found["gradients"], gradients, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.all)])
def test_another_world_size_reads_the_same_state(
    six_steps: Trained, tmp_path: Path, ranks: int
) -> None:
    """Bit by bit: parameters, the optimizer's moments, step and loss; each rank wrote a file."""
    again = tmp_path / "again"
    flags = (*FEW, "--steps=6", f"--resume={six_steps.folder}", f"--checkpoint={again}")
    out = python(SCRIPT, *flags).stdout if ranks == 1 else torchrun(ranks, SCRIPT, *flags).stdout

    assert out == f"loss {six_steps.losses[-1]:.4f} after 6 steps\n"
    assert len(list(six_steps.folder.glob("save-000001/*.distcp"))) == 2
    assert len(list(again.glob("save-000001/*.distcp"))) == ranks
    one = load(six_steps.saved, tmp_path / "one.pt")
    assert_same(one, load(again / "save-000001", tmp_path / "other.pt"))
    assert (one["step"], len(one["model"]), len(one["optimizer"]["state"])) == (6, 20, 20)


DIES = """
import os, runpy, sys, torch.distributed.checkpoint as dcp
save = dcp.save
def die(state, **options):
    save(state, **options)
    if "model" in state:
        os._exit(9)
dcp.save = die
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def test_a_checkpoint_is_replaced_by_a_whole_one_or_not_at_all(
    six_steps: Trained, tmp_path: Path
) -> None:
    """What dies while it writes leaves the last one; what does not leaves no file of more ranks."""
    folder = tmp_path / "state"
    shutil.copytree(six_steps.folder, folder)
    flags = (*FEW, "--steps=7", f"--resume={folder}", f"--checkpoint={folder}")
    dead = python("-c", DIES, SCRIPT, *flags)
    assert (dead.returncode, "new" in {path.name for path in folder.iterdir()}) == (9, True), dead
    assert_same(
        load(six_steps.saved, tmp_path / "one.pt"),
        load(folder / "save-000001", tmp_path / "two.pt"),
    )

    assert python(SCRIPT, *flags).returncode == 0
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
    assert names == ["save-000002/.metadata", "save-000002/__0_0.distcp"]
    assert load(folder / "save-000002", tmp_path / "three.pt")["step"] == 7


def test_a_folder_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    """Exit code 2 before a step: a file in the way, another program's checkpoint."""
    python(
        "-c",
        "import sys, torch.distributed.checkpoint as dcp\n"
        "dcp.save({'w': 1}, checkpoint_id=sys.argv[1])",
        str(tmp_path / "foreign"),
    )
    (tmp_path / "file").write_text("")
    for flag, name, why in (
        ("--checkpoint", "file/state", "Not a directory"),
        ("--resume", "foreign", "Missing key in checkpoint state_dict: "),
    ):
        done = python(SCRIPT, "--steps=1", f"{flag}={tmp_path / name}")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
        assert done.stderr.startswith("fsdp.py: error: checkpoint, rank 0: "), done
        assert why in done.stderr


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
