"""The shipped tasks: ranks, backend and device of trainings, and reports of `collectives`."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

import runner
from runner.tasks import collectives_report as report

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


@functools.cache
def told() -> dict[str, dict[str, object]]:
    """Parse the arguments of each training in each case, in one process that imports torch once."""
    env = {name: value for name, value in os.environ.items() if name not in RANKS}
    scripts = {training: str(script) for training, script in SCRIPTS.items()}
    command = [sys.executable, "-c", PARSES, json.dumps([scripts, CASES])]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found: dict[str, dict[str, object]] = json.loads(done.stdout)
    return found


PARSES = """
import json, os, runpy, sys, tempfile
import torch

os.chdir(tempfile.mkdtemp())
clean = dict(os.environ)
scripts, cases = json.loads(sys.argv[1])
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
print(json.dumps(found))
"""


@pytest.mark.parametrize("training", SCRIPTS)
def test_the_backend_decides_the_device(training: str) -> None:
    """gloo means CPUs also where there are GPUs; and no rank means one process, so all the data."""
    found = {case: by_training[training] for case, by_training in told().items()}
    assert found == {case: wanted[3] for case, wanted in CASES.items()}


@pytest.mark.parametrize(
    ("text", "count"),
    [("4096", 4096), ("64K", 65536), ("2GiB", 2 << 30), ("3mb", 3 << 20)],
)
def test_sizes_are_read_in_powers_of_1024(text: str, count: int) -> None:
    """The unit may be written in any of the usual ways."""
    assert report.parse_size(text) == count


@pytest.mark.parametrize("text", ["", "0", "1.5G", "K"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """Rather than taken for something else."""
    with pytest.raises(ValueError, match="is no size such as"):
        report.parse_size(text)


@pytest.mark.parametrize("players", [0, 1, 2, 5, 8])
def test_everyone_meets_everyone_once_and_nobody_is_in_two_places(players: int) -> None:
    """And it takes no more rounds than it must."""
    rounds = report.tournament(players)

    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == list(combinations(range(players), 2))
    for pairs in rounds:
        busy = [player for pair in pairs for player in pair]
        assert len(busy) == len(set(busy))
        assert len(pairs) == players // 2
    assert len(rounds) == max(players - 1 + players % 2, 0)


@pytest.mark.parametrize(("nodes", "slow"), [(3, 0), (8, 2)])
def test_a_slow_node_is_named_and_none_of_those_it_talks_to(nodes: int, slow: int) -> None:
    """Medians keep its slow links from being counted against the others."""
    names = [f"node{number}" for number in range(nodes)]
    speeds = [[3e9 if slow in (a, b) else 1e10 for b in range(nodes)] for a in range(nodes)]
    verdicts = [share.verdict() for share in report.compare_nodes(names, speeds)]
    assert [text for text in verdicts if text] == [f"node{slow} is slow: 0.3 of the others' median"]
