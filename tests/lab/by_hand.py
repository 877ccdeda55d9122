"""Shipped tasks by hand: plain torchrun on this machine, with nothing of the runner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import runner
from tests.lab.launching import ROOT
from tests.lab.waiting import PATIENCE

TASKS = Path(runner.__file__).parent / "tasks"
EXAMPLES = ROOT / "examples"
TORCHRUN = ("-m", "torch.distributed.run")


def program(name: str) -> Path:
    example = EXAMPLES / f"{name}.py"
    return example if example.is_file() else TASKS / f"{name}.py"


def python(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run our python on this machine's CPUs, under a deadline that ends torchrun's ranks too."""
    mine = {name: value for name, value in os.environ.items() if name != "DIST_BACKEND"}
    return subprocess.run(
        ["timeout", "--kill-after=15", f"{160 * PATIENCE:.0f}", sys.executable, *command],
        env={**mine, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )


def torchrun(ranks: int, *command: str) -> subprocess.CompletedProcess[str]:
    """Start so many ranks of a program to their success; they may import the runner."""
    launch = (*TORCHRUN, "--standalone", f"--nproc_per_node={ranks}")
    done = python(*launch, *command, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done
    return done


def assert_same(one: object, other: object, where: str = "") -> None:
    """Compare nested dicts and lists; tensors by their bits."""
    import torch  # noqa: PLC0415 - only the tests that run may need it

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


def progress(out: str, steps: int, unit: str = "samples") -> list[float]:
    """Return the losses that a task has printed of each step; its last line repeats the last."""
    *lines, last = out.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["step"], row["steps"], row["unit"]) for row in rows] == [
        (step, steps, unit) for step in range(rows[0]["step"], steps + 1)
    ]
    assert all(row["rate"] > 0 for row in rows)
    assert last == f"loss {rows[-1]['loss']:.4f} after {steps} steps"
    return [row["loss"] for row in rows]
