"""Checkpoints of the shipped task `fsdp`: whole, and read by another number of ranks."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.by_hand import EXAMPLES, assert_same, progress, python, torchrun

pytestmark = pytest.mark.tasks

SCRIPT = str(EXAMPLES / "fsdp.py")
FEW = ("--log_every=1", "--seed=3")


@dataclass
class Trained:
    """The losses of some steps, and the checkpoint after them."""

    losses: list[float]
    folder: Path

    @property
    def saved(self) -> Path:
        (saved,) = self.folder.iterdir()
        return saved


@pytest.fixture(scope="module")
def six_steps(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("fsdp") / "new" / "state"
    done = torchrun(2, SCRIPT, *FEW, "--steps=6", f"--checkpoint={folder}")
    return Trained(progress(done.stdout, 6), folder)


def load(folder: Path, aside: Path) -> dict[str, Any]:
    import torch  # noqa: PLC0415
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: PLC0415

    dcp_to_torch_save(folder, aside)
    state: dict[str, Any] = torch.load(aside, weights_only=True)
    return state


def test_another_world_size_reads_the_same_state(six_steps: Trained, tmp_path: Path) -> None:
    """Bit by bit: parameters, the optimizer's moments, step and loss; each rank wrote a file."""
    again = tmp_path / "again"
    flags = (*FEW, "--steps=6", f"--resume={six_steps.folder}", f"--checkpoint={again}")
    out = torchrun(3, SCRIPT, *flags).stdout

    assert out == f"loss {six_steps.losses[-1]:.4f} after 6 steps\n"
    assert len(list(six_steps.folder.glob("save-000001/*.distcp"))) == 2
    assert len(list(again.glob("save-000001/*.distcp"))) == 3
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
