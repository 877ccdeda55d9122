"""Output of `check`: a healthy cluster, and one with several problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from runner.checks.base import CheckContext, evaluate_checks
from runner.core.errors import Problem
from runner.core.spec import Node
from runner.core.wire.facts import (
    Facts,
    GpuProcess,
    Interpreter,
    Outcome,
    SetupResult,
)
from runner.transport.endpoint import Endpoint
from runner.ui.layout import wrap_lines
from runner.ui.problems import render_findings
from tests.golden.builders import TORCH, facts, gpus, network_probe, spec

NAMES = tuple(f"gpu{at:02}" for at in range(1, 17))
ADDRESSES = {name: f"10.20.0.{at}" for at, name in enumerate(NAMES, 101)}
BLOCKED = (("gpu03", "gpu14"), ("gpu14", "gpu03"))
SILENT = ("gpu05", "gpu06", "gpu11")
CONDA = """\
module: command not found
/usr/bin/bash: line 2: /opt/conda/etc/profile.d/conda.sh: No such file or directory
setup line 2 (source /opt/conda/etc/profile.d/conda.sh) ended with exit code 1"""


def well() -> CheckContext:
    """Sixteen machines alike."""
    nodes = [Node(name, address) for name, address in ADDRESSES.items()]
    told = {name: fact(name) for name in NAMES}
    return CheckContext(
        spec(*nodes), told, {}, dict.fromkeys(NAMES, 0.01), network_probe=network_probe(ADDRESSES)
    )


def fact(name: str) -> Facts:
    """What one of them says; no two have as much room."""
    own = ADDRESSES[name]
    room = (700 + int(own.rpartition(".")[2])) << 30
    return facts(
        name,
        f"eth0 {own}/24",
        gpu_count=8,
        disk_free=room,
        shm_free=256 << 30,
        limits={"nofile": 65536},
    )


def ill() -> CheckContext:
    """Three do not answer, and some have something wrong."""
    case = well()
    told = {name: each for name, each in case.facts.items() if name not in SILENT}
    old = replace(TORCH, torch="2.1.0+cu118", executable="/home/ada/miniconda3/envs/llm/bin/python")
    busy = GpuProcess(4242, 70 << 30, "bob", "python train.py")
    changed = {
        "gpu02": replace(told["gpu02"], setup=SetupResult(1, CONDA), python=Interpreter()),
        "gpu07": replace(told["gpu07"], python=old),
        "gpu09": replace(told["gpu09"], shm_free=64 << 20),
        "gpu10": replace(told["gpu10"], shm_free=64 << 20, disk_free=900 << 20),
        "gpu12": replace(told["gpu12"], gpus=(replace(gpus(1)[0], processes=(busy,)),)),
    }
    silent = {name: no_answer(name) for name in SILENT}
    ready = {name: at for name, at in ADDRESSES.items() if name not in (*SILENT, "gpu02")}
    facts_now = {**told, **changed}
    return replace(
        case,
        facts=facts_now,
        unreachable=silent,
        network_probe=network_probe(ready, dict.fromkeys(BLOCKED, Outcome.TIMED_OUT)),
    )


def no_answer(name: str) -> Problem:
    """What a launch says of a host that is off."""
    options = ("-i", "/home/ada/.ssh/id_cluster_ed25519", "-l", "ada")
    jump = ("-J", "ada@bastion.example.org")
    address = ADDRESSES[name]
    endpoint = Endpoint(name, address, host=address, options=options, jump=jump)
    failure = endpoint.by_words(["timed out after 10 s"], "while connecting")
    return failure.problems[0]


@pytest.mark.parametrize(("case", "width"), [(well, 140), (ill, 60)])
def test_the_table_of_a_check(
    case: Callable[[], CheckContext], width: int, check_screen: Callable[[str, str], None]
) -> None:
    """Read the diff as a tired user: nothing to copy is broken, the worst is last."""
    text = render_findings(evaluate_checks(case()), "lab", "train", width)
    check_screen(f"check-{case.__name__}-{width}.txt", text + "\n")


PROGRAM = "/home/ada/src/runner/.venv/bin/runner"
NARROW = f"""\
error: gpu1: cluster.workdir: /home/ada/.runner has 31 MiB free, a run needs 32 MiB and room
    see what ended runs left: {PROGRAM} clean --cluster lab --older-than 0s
    {PROGRAM} ps --all --cluster lab task.args.name=long-enough-for-two
    without --dry-run that is removed; or set cluster.workdir to a-very-long-name-of-another-disk
  | RuntimeError: a line that is quoted as the program wrote it, however long it may be
  gpu1  rank 0 exited with code 1; 0 processes left
#   note: no GPU on gpu1: 1 rank on the CPU, which a comment says (cluster.nproc_per_node sets more)
"""


def test_lines_are_broken_at_blanks_and_commands_never(
    check_screen: Callable[[str, str], None],
) -> None:
    """A command that does not fit after its words has a line of its own."""
    wrapped = wrap_lines(NARROW, 79)
    check_screen("wrapped-80.txt", wrapped)
    assert wrapped.replace("\n#     ", " ").split() == NARROW.split()
    assert wrap_lines(NARROW, 120) == NARROW
    too_long = [line for line in wrapped.splitlines() if len(line) > 79]
    assert all(line.lstrip().startswith((PROGRAM, "| ")) for line in too_long)
    assert f"\n    {PROGRAM} clean --cluster lab --older-than 0s\n" in wrapped
