"""Every shipped training: the same result by hand with torchrun and through the runner."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from tests.lab.by_hand import EXAMPLES, TASKS, TORCHRUN, program
from tests.lab.lab import Lab
from tests.lab.launching import Launcher
from tests.lab.waiting import PATIENCE

pytestmark = pytest.mark.tasks

ONE_CORE = "cluster.env.OMP_NUM_THREADS=1"

ACCURACY = r"test loss \d\.\d{4}, test accuracy \d+\.\d\d % after \d+ steps"
LOSS = r"loss \d\.\d{4} after \d+ steps"
QUICK = {"steps": 10, "log_every": 5}


@dataclass(frozen=True)
class Training:
    """One shipped training, and how it is made quick.

    Attributes:
        result: A pattern of the part of rank 0's output that is the same in every equal run.
        by_torchrun: Whether torchrun starts it by hand, on two hosts; else `python` does, once.
    """

    name: str
    result: str
    args: Mapping[str, object] = field(default_factory=dict)
    ranks: int = 1
    by_torchrun: bool = True


TRAININGS = (
    Training("single", ACCURACY, {"epochs": 2}, by_torchrun=False),
    Training("data_parallel", ACCURACY, {"epochs": 2}, by_torchrun=False),
    Training("ddp", ACCURACY, {"epochs": 1, "accumulate": 2}),
    Training("elastic", ACCURACY, {"epochs": 2}),
    Training("resnet18", r"final test accuracy .* \(\d+/360\)", {"epochs": 1, "batch_size": 480}),
    Training("rpc_parameter_server", LOSS, {**QUICK, "batch_size": 84}, ranks=2),
    Training("rpc_pipeline", LOSS, QUICK, ranks=2),
    Training("pipeline", LOSS, QUICK),
    Training("fsdp", LOSS, QUICK),
    Training("tensor_parallel", LOSS, QUICK, ranks=2),
    Training("char_gpt", rf"test {LOSS}", {**QUICK, "sample": 20}),
)


def by_hand(lab: Lab, training: Training, names: list[str]) -> str:
    """Start it on each host as its docstring says; return what rank 0 printed."""
    nodes = [lab[name] for name in names]
    script = [
        str(program(training.name)),
        *(f"--{name}={value}" for name, value in training.args.items()),
    ]
    launch = [
        *TORCHRUN,
        f"--nnodes={len(nodes)}",
        f"--nproc_per_node={training.ranks}",
        f"--master_addr={nodes[0].address}",
    ]
    limit = f"{150 * PATIENCE:.0f}"
    python = ["env", "OMP_NUM_THREADS=1", "timeout", "--kill-after=15", limit, sys.executable]
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in nodes]
        started: list[subprocess.Popen[str]] = []
        for rank, (host, output) in enumerate(zip(nodes, outputs, strict=True)):
            torchrun = [*launch, f"--node_rank={rank}"] if training.by_torchrun else []
            argv = [*python, *torchrun, *script]
            started.append(host.popen(argv, stdout=output, stderr=subprocess.STDOUT))
        codes = [each.wait() for each in started]
        printed = [(output.seek(0), output.read())[1] for output in outputs]
    assert codes == [0] * len(nodes), printed
    return printed[0]


@pytest.mark.slow
@pytest.mark.promise(14)
@pytest.mark.parametrize(
    "training",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.smoke] if each.name == "ddp" else [])
        for each in TRAININGS
    ],
)
def test_by_hand_and_by_the_runner(training: Training, lab: Lab, on_lab: Launcher) -> None:
    """On as many hosts, to the last digit."""
    names = ["node1", "node2"] if training.by_torchrun else ["node1"]
    expected = re.findall(training.result, by_hand(lab, training, names))
    done = on_lab(
        "cluster=lab",
        f"cluster.only=[{','.join(names)}]",
        f"cluster.nproc_per_node={training.ranks}",
        f"task={training.name}",
        ONE_CORE,
        *(f"task.args.{name}={value}" for name, value in training.args.items()),
        seconds=200,
    )

    assert done.code == 0, done
    assert len(expected) == 1
    assert re.findall(training.result, done.log("node1", 0)) == expected


def test_the_table_has_every_training() -> None:
    """A task that is added is added there; `env` and `collectives` train nothing."""
    files = {path.stem for folder in (TASKS, EXAMPLES) for path in folder.glob("*.py")}
    others = {"__init__", "env", "collectives"}
    assert {training.name for training in TRAININGS} == files - others
