"""Readiness: each problem that makes a start pointless, as a person reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.core.planning.build_plan import build_plan
from runner.core.planning.readiness import problems_of, visible_gpus
from runner.core.spec import Node, Spec, Task
from runner.core.wire.facts import Facts, Interpreter, SetupResult
from runner.core.wire.order import environment
from tests.golden.builders import facts, spec

NODE = Node("gpu1", "10.0.0.1")
ONE = spec(NODE)


def text(asked: Spec, told: Facts) -> str:
    return "\n".join(str(problem) for problem in problems_of(asked, asked.nodes[0], told))


def told(**others: Any) -> Facts:
    """Facts of a host with 4 GPUs that is in order but for `others`."""
    return facts("gpu1", "eth0 10.0.0.1/24", gpu_count=4, **others)


@pytest.mark.parametrize(
    ("others", "start"),
    [
        ({"python": Interpreter(error="no python3 on PATH")}, "gpu1: no python3 on PATH"),
        ({"python": Interpreter("/bin/python3", "3.11.2")}, "gpu1: no torch in /bin/python3"),
        (
            {"setup": SetupResult(1, "module: command not found\n"), "python": Interpreter()},
            "gpu1: cluster.setup ended with 1\n    | module: command not found\n    change",
        ),
        ({"workdir_error": "Permission denied"}, "gpu1: cluster.workdir: Permission denied"),
        ({"disk_free": 31 << 20}, "gpu1: cluster.workdir: /home/ada/.runner has 31 MiB free, a"),
        ({"project_exists": False, "script_exists": False}, "gpu1: cluster.project: there is no"),
        ({"script_exists": False}, "gpu1: task.script: there is no file train.py in /home/ada"),
        ({"reserved_port": 0, "port_error": "in use"}, "gpu1: cluster.master_port: in use\n"),
    ],
)
def test_problem_says_what_to_do(others: dict[str, Any], start: str) -> None:
    """Each names the host, what was seen, and the next step; what it causes is not told."""
    (problem,) = problems_of(ONE, NODE, told(**others))
    assert str(problem).startswith(start)
    assert problem.hint


@pytest.mark.parametrize(
    ("chosen", "problem"),
    [("eth0,ib0", "there is no interface ib0"), ("eth1", "eth1 has no address"), ("eth0,lo", "")],
)
def test_an_interface_that_the_host_lacks(chosen: str, problem: str) -> None:
    """With the key and those it has; a host that tells none is not judged."""
    asked = spec(replace(NODE, interface=chosen))
    host = facts(
        "gpu1", "eth0 10.0.0.1/24", "eth1", "eth2 10.1.0.1/16 fd00::1/64", "veth fe80::1/64"
    )
    expected = f"gpu1: cluster.nodes.gpu1.interface: {problem}\n    legal here: eth0, eth2"
    assert text(asked, host) == (expected if problem else "")
    assert text(asked, replace(host, interfaces=())) == ""


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("", ()),
        ("1,-1,2", (1,)),  # CUDA stops at what is no device
        ("0,9,1", (0,)),  # or is not there
        ("GPU-0002-a100,GPU-0000", (2, 0)),
        ("GPU-000", ()),  # a short UUID of several
    ],
)
def test_hosts_own_choice_of_gpus_holds(chosen: str, expected: tuple[int, ...]) -> None:
    """CUDA_VISIBLE_DEVICES as the host sets it is read as CUDA reads it."""
    host = facts("a", gpu_count=4, preset_env={"CUDA_VISIBLE_DEVICES": chosen})
    assert visible_gpus(host) == expected


def test_a_plain_program_needs_no_torch() -> None:
    """Nor an interpreter, where it is no Python."""
    script = spec(NODE, task=Task(name="t", kind="script", target="t.py", entry="plain"))
    assert text(script, told(python=Interpreter("/usr/bin/python3", "3.11.2"))) == ""
    command = spec(NODE, task=Task(name="t", kind="command", target="julia", entry="plain"))
    assert text(command, told(python=Interpreter(error="no python3"))) == ""


def test_gpus_that_are_not_there_are_named() -> None:
    """A wrong choice of GPUs is answered with what the host has."""
    asked = spec(Node("gpu1", "h", gpus=(0, 2)))
    hidden = {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert text(asked, told(preset_env=hidden)) == (
        "gpu1: cluster.nodes.gpu1.gpus: asked for device 0, the host has 2 (nvml)\n"
        "    legal here: 0 to 2, or a list of [2, 3]"
    )


def test_other_gpus_than_nvidias_are_started_by_number() -> None:
    """By the keys that the refusal names: NVML counts no others."""
    host = facts("gpu1", "eth0 10.0.0.1/24")
    refused = text(spec(Node("gpu1", "h", gpus=8)), host)
    assert "set cluster.nproc_per_node=8 and cluster.backend, such as hccl" in refused
    made = build_plan(spec(Node("gpu1", "h", nproc_per_node=8), backend="hccl"), {"gpu1": host})
    env = environment(made.node("gpu1").order)
    assert (made.world_size, env["DIST_BACKEND"]) == (8, "hccl")
    assert "CUDA_VISIBLE_DEVICES" not in env
