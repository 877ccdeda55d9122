"""The shipped tasks: ranks, backend and device of trainings, and who measures with whom."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import runner

TASKS = Path(runner.__file__).parent / "tasks"
EXAMPLES = Path(__file__).parents[3] / "examples"
SCRIPTS = {
    "ddp": EXAMPLES / "ddp.py",
    "elastic": EXAMPLES / "elastic.py",
    "char_gpt": EXAMPLES / "char_gpt.py",
    "fsdp": EXAMPLES / "fsdp.py",
    "tensor_parallel": EXAMPLES / "tensor_parallel.py",
    "pipeline": EXAMPLES / "pipeline.py",
    "resnet18": TASKS / "resnet18.py",
}
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "DIST_BACKEND")
SECOND = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}

CASES = {
    "GPUs": (2, SECOND, [], ["nccl", "cuda:1", 2]),
    "gloo by an argument": (2, SECOND, ["--backend=gloo"], ["gloo", "cpu", 2]),
    "gloo by the plan": (2, {**SECOND, "DIST_BACKEND": "gloo"}, [], ["gloo", "cpu", 2]),
    "nccl by an argument": (
        2,
        {**SECOND, "DIST_BACKEND": "gloo"},
        ["--backend=nccl"],
        ["nccl", "cuda:1", 2],
    ),
    "a GPU for one of two ranks": (1, {**SECOND, "LOCAL_RANK": "0"}, [], ["gloo", "cpu", 2]),
    "no GPU": (0, SECOND, [], ["gloo", "cpu", 2]),
    "a world size without a rank": (0, {"WORLD_SIZE": "2"}, [], ["gloo", "cpu", 1]),
    "no torchrun, a GPU": (1, {}, [], ["nccl", "cuda:0", 1]),
    "a foreign backend": (0, {"DIST_BACKEND": "mpi"}, [], 2),
    "rank 0 of 8": (0, {"RANK": "0", "WORLD_SIZE": "8"}, [], ["gloo", "cpu", 8]),
}
"""GPUs, environment, arguments; and backend, device and world size, or the exit code."""


PLAYERS = (1, 2, 5, 8)


@functools.cache
def told() -> dict[str, dict[str, Any]]:
    """Ask all programs, in one process that imports torch once.

    That is each training's backend, device and world size in each case, and below "rounds" the
    pairs that `collectives` measures at the same time, by the number of nodes.
    """
    env = {name: value for name, value in os.environ.items() if name not in RANKS}
    scripts = {training: str(script) for training, script in SCRIPTS.items()}
    asked = [scripts, CASES, str(TASKS / "collectives.py"), PLAYERS]
    command = [sys.executable, "-c", ASKS, json.dumps(asked)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


ASKS = """
import json, os, runpy, sys, tempfile
import torch

os.chdir(tempfile.mkdtemp())
clean = dict(os.environ)
scripts, cases, collectives, players = json.loads(sys.argv[1])
found = {case: {} for case in cases}
for case, (gpus, env, flags, _) in cases.items():
    torch.cuda.device_count = lambda: gpus
    os.environ.clear()
    os.environ.update(clean, **env)
    for training, script in scripts.items():
        task = runpy.run_path(script)
        sys.argv = [training, *flags]
        try:
            args = task["parse_args"]()
            found[case][training] = [args.backend, str(args.device), task["WORLD_SIZE"]]
        except SystemExit as end:
            found[case][training] = end.code
tournament = runpy.run_path(collectives)["tournament"]
found["rounds"] = {number: tournament(number) for number in players}
print(json.dumps(found))
"""


@pytest.mark.parametrize("training", SCRIPTS)
def test_the_backend_decides_the_device(training: str) -> None:
    """gloo means CPUs also where there are GPUs; and no rank means one process, so all the data."""
    found = {case: told()[case][training] for case in CASES}
    assert found == {case: wanted[3] for case, wanted in CASES.items()}


@pytest.mark.parametrize("players", PLAYERS)
def test_everyone_meets_everyone_once_and_nobody_is_in_two_places(players: int) -> None:
    """And it takes no more rounds than it must."""
    rounds = told()["rounds"][str(players)]
    met = [tuple(sorted(pair)) for pairs in rounds for pair in pairs]
    assert sorted(met) == list(combinations(range(players), 2))
    for pairs in rounds:
        assert len({player for pair in pairs for player in pair}) == players // 2 * 2
