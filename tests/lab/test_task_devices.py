"""Shipped tasks that split a model: the device is the backend's, the defaults suit the ranks."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.lab.by_hand import TASKS, TORCHRUN, python

pytestmark = [
    pytest.mark.tasks,
    # torch's distributed optimizers use it as they are imported.
    pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning"),
]

WITH_GPUS = """
import runpy, sys, torch
torch.cuda.device_count = lambda: 8
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
TASKS_THAT_SPLIT = ["fsdp", "tensor_parallel", "pipeline", "rpc_pipeline", "rpc_parameter_server"]


@pytest.mark.parametrize(
    "task",
    [pytest.param(t, marks=[] if t == "fsdp" else pytest.mark.all) for t in TASKS_THAT_SPLIT],
)
def test_gloo_keeps_to_the_cpu_where_there_are_gpus(tmp_path: Path, task: str) -> None:
    """By DIST_BACKEND, as a plan sets it: a tensor on one of the pretended GPUs would fail."""
    program = tmp_path / "with_gpus.py"
    program.write_text(WITH_GPUS)
    script = str(TASKS / f"{task}.py")
    launch = (*TORCHRUN, "--standalone", "--nproc_per_node=2", str(program))
    done = python(*launch, script, "--steps=1", DIST_BACKEND="gloo")

    assert done.returncode == 0, done
    assert done.stdout.endswith(" after 1 steps\n")


@pytest.mark.parametrize(
    ("gpus", "chosen", "backend", "device"),
    [
        (2, [], "nccl", "cuda:0"),
        (1, [], "gloo", "cpu"),
        (0, [], "gloo", "cpu"),
        (2, ["--backend=gloo"], "gloo", "cpu"),
        (1, ["--backend=nccl"], "nccl", "cuda:0"),
    ],
)
def test_all_ranks_of_a_node_choose_alike(
    monkeypatch: pytest.MonkeyPatch, gpus: int, chosen: list[str], backend: str, device: str
) -> None:
    """Of two ranks on a node with one GPU, neither takes it, unless it is told to."""
    import torch  # noqa: PLC0415 - only the tests that run may need it

    monkeypatch.delenv("DIST_BACKEND", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(sys, "argv", ["task.py", *chosen])
    for name in TASKS_THAT_SPLIT[:3]:
        task = importlib.import_module(f"runner.tasks.{name}")
        monkeypatch.setattr(task, "LOCAL_WORLD_SIZE", 2)
        args = task.parse_args()
        assert (args.backend, str(args.device)) == (backend, device), name


@pytest.mark.parametrize("name", TASKS_THAT_SPLIT)
def test_the_defaults_suit_usual_numbers_of_ranks(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """1, 2, 3, 4, 6 and 8, without an argument; by RPC, from 2 on."""
    monkeypatch.delenv("DIST_BACKEND", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["task.py"])
    task = importlib.import_module(f"runner.tasks.{name}")
    for ranks in (2, 3, 4, 6, 8) if name.startswith("rpc") else (1, 2, 3, 4, 6, 8):
        monkeypatch.setattr(task, "WORLD_SIZE", ranks)
        monkeypatch.setattr(task, "TRAINERS", ranks - 1, raising=False)
        task.parse_args()
