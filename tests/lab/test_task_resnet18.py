"""ResNet-18 by hand: what plain torchrun makes of the shipped task, with nothing of the runner."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import runner
from tests.lab.launching import PROGRAMS

pytestmark = [pytest.mark.torch, pytest.mark.documents("docs/tasks.md")]

SCRIPT = str(Path(runner.__file__).parent / "tasks" / "resnet18.py")
FEW = (str(PROGRAMS / "few_digits.py"), SCRIPT)
"""The training with 240 images, and 60 for the test."""

FEW_STEPS = "--batch_size=42"  # five per epoch, for 1, 2, 3 and 7 ranks
RUN_OF = "world size {}, backend gloo, device cpu"


def python(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run our python on this machine's CPUs, under a deadline that ends torchrun's ranks too."""
    mine = {name: value for name, value in os.environ.items() if name != "DIST_BACKEND"}
    return subprocess.run(
        ["timeout", "--kill-after=15", "100", sys.executable, *command],
        env={**mine, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )


def torchrun(ranks: int, *flags: str) -> list[str]:
    """Train on few images with so many ranks; return what they printed."""
    launch = ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}")
    done = python(*launch, *FEW, *flags)
    assert done.returncode == 0, done
    return done.stdout.splitlines()


def forked(script: str, cases: list[tuple[list[str], int]]) -> list[tuple[int, str, str]]:
    """Start a script's last rank with other flags and world sizes, all by one import of torch.

    Returns:
        For each case its exit code, and what it printed on standard output and error.
    """
    done = python("-c", FORKS, script, json.dumps(cases))
    assert done.returncode == 0, done
    return [(code, out, err) for code, out, err in json.loads(done.stdout)]


FORKS = """
import json, os, runpy, sys, tempfile
import torch.distributed, torch.nn.parallel, torch.utils.data
ended = []
for flags, world_size in json.loads(sys.argv[2]):
    files = [tempfile.TemporaryFile("w+") for _ in range(2)]
    pid = os.fork()
    if not pid:
        os.dup2(files[0].fileno(), 1)
        os.dup2(files[1].fileno(), 2)
        os.environ.update(RANK=f"{world_size - 1}", WORLD_SIZE=f"{world_size}", LOCAL_RANK="0")
        sys.argv = [sys.argv[1], *flags]
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    ended.append([code, *(file.seek(0) or file.read() for file in files)])
print(json.dumps(ended))
"""


@dataclass
class Epoch:
    """What the training of one epoch printed, and its checkpoint."""

    lines: list[str]
    path: Path


@pytest.fixture(scope="module")
def one_epoch(tmp_path_factory: pytest.TempPathFactory) -> Epoch:
    """One epoch by three ranks: two numbers add up alike in any order."""
    path = tmp_path_factory.mktemp("one") / "new" / "digits.pt"
    return Epoch(torchrun(3, FEW_STEPS, "--epochs=1", f"--checkpoint={path}"), path)


@pytest.mark.all
def test_resumed_training_is_the_same_training(one_epoch: Epoch, tmp_path: Path) -> None:
    """An epoch and one more after a resume give, bit for bit, what two in a row give."""
    whole, resumed = tmp_path / "whole.pt", tmp_path / "resumed.pt"
    torchrun(3, FEW_STEPS, "--epochs=2", f"--checkpoint={whole}")
    lines = torchrun(
        3, FEW_STEPS, "--epochs=2", f"--resume={one_epoch.path}", f"--checkpoint={resumed}"
    )

    assert [line.split("  ")[0] for line in lines[1:-1]] == ["epoch 2/2"]
    two = load(whole)
    assert (two["epoch"], len(two["model"]), len(two["optimizer"]["state"])) == (2, 122, 62)
    assert_same(two, load(resumed))
    with pytest.raises(AssertionError):
        assert_same(two, load(one_epoch.path))


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint the safe way."""
    import torch  # noqa: PLC0415 - only the tests that run may need it

    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def assert_same(one: object, other: object, where: str = "") -> None:
    """Compare nested dicts and lists; tensors by their bits."""
    import torch  # noqa: PLC0415

    assert type(one) is type(other), where
    if isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys(), where
        for key, value in one.items():
            assert_same(value, other[key], f"{where}/{key}")
    elif isinstance(one, list) and isinstance(other, list):
        assert len(one) == len(other), where
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same(left, right, f"{where}/{index}")
    elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        assert torch.equal(one, other), where
    else:
        assert one == other, where


@pytest.mark.all
def test_one_path_is_written_and_gone_on_from(tmp_path: Path) -> None:
    """The same command begins a training, and after a relaunch goes on with it."""
    flags = (FEW_STEPS, f"--checkpoint={tmp_path / 'm.pt'}", f"--resume={tmp_path / 'm.pt'}")
    torchrun(2, *flags, "--epochs=1")
    lines = torchrun(2, *flags, "--epochs=2")

    assert [line.split("  ")[0] for line in lines[1:-1]] == ["epoch 2/2"]


def test_only_rank_0_speaks_and_leaves_one_file(one_epoch: Epoch) -> None:
    """It tells where it runs, a line per epoch, and the result; the checkpoint lies alone."""
    first, epoch, last = one_epoch.lines
    assert first == RUN_OF.format(3)
    assert re.fullmatch(r"epoch 1/1  loss \d\.\d{4}  test accuracy \d+\.\d\d %  \d+\.\d s", epoch)
    assert re.fullmatch(
        r"final test accuracy \d+\.\d\d % \(\d+/60\), trained 1 epochs in \d+\.\d s", last
    )
    assert [file.name for file in one_epoch.path.parent.iterdir()] == ["digits.pt"]


@pytest.mark.all
def test_each_test_image_counts_once_with_any_number_of_ranks(one_epoch: Epoch) -> None:
    """60 images do not divide by 7; still 1 and 7 ranks count the same right answers of 60."""
    nothing_to_train = (FEW_STEPS, "--epochs=1", f"--resume={one_epoch.path}")
    alone = python(*FEW, *nothing_to_train)

    assert alone.stderr == ""
    first, last = alone.stdout.splitlines()
    assert first == RUN_OF.format(1)
    final = re.match(r"final test accuracy [\d.]+ % \(\d+/60\), trained 0 epochs", last)
    assert final
    first, last = torchrun(7, *nothing_to_train)
    assert first == RUN_OF.format(7)
    assert last.startswith(final[0])


def test_missed_target_is_exit_code_1(one_epoch: Epoch) -> None:
    """A test accuracy below the target is a failure, told in one line after the others."""
    done = python(SCRIPT, "--epochs=1", f"--resume={one_epoch.path}", "--target_accuracy=100")

    assert (done.returncode, done.stderr) == (1, "")
    last = done.stdout.splitlines()[-1]
    assert last == "test accuracy is below the target of 100.0 %"


def test_bad_flags_are_one_line_and_exit_code_2() -> None:
    """Any rank ends alone, before it waits for another, with a line that says what to change."""
    cases = [
        (["--sync_bn"], 2, "--sync_bn needs a GPU for local rank 0; this host shows 0"),
        (["--epochs=0"], 1, "--epochs must be at least 1, not 0"),
        (["--backend=mpi"], 1, "--backend or DIST_BACKEND must be gloo or nccl, not 'mpi'"),
        (["--backend=nccl"], 1, "nccl needs a GPU for local rank 0; this host shows 0"),
        (["--resume=/no/such.pt"], 1, "--resume: there is no file /no/such.pt"),
    ]
    ended = forked(SCRIPT, [(flags, world_size) for flags, world_size, _ in cases])
    for (flags, _, message), (code, out, err) in zip(cases, ended, strict=True):
        assert (code, out) == (2, ""), flags
        assert err.startswith(f"resnet18.py: error: {message}"), flags
        assert err.count("\n") == 1, flags
