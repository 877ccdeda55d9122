"""`build_plan`: its choices and refusals; whole plans are in tests/golden."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.errors import NotReady
from runner.core.planning.build_plan import build_plan, ssh_forward
from runner.core.spec import Debug, Node, Ssh, Task
from runner.core.wire.facts import Facts, Interpreter
from runner.core.wire.plan import CodeRef
from tests.golden.builders import facts, spec

A = Node("a", "10.0.0.1")
B = Node("b", "10.0.0.2")


def told(gpus_of_a: int, gpus_of_b: int) -> dict[str, Facts]:
    return {
        "a": facts("a", "eth0 10.0.0.1/24", gpu_count=gpus_of_a),
        "b": facts("b", "eth0 10.0.0.2/24", gpu_count=gpus_of_b),
    }


@pytest.mark.parametrize(
    ("asked", "counts", "nproc", "expected"),
    [
        ("auto", (2, 1), None, "nccl"),
        ("auto", (2, 0), None, "gloo"),
        ("auto", (2, 2), 3, "gloo"),
        ("nccl", (2, 2), 1, "nccl"),
    ],
)
def test_backend_is_one_for_all(
    asked: str, counts: tuple[int, int], nproc: int | None, expected: str
) -> None:
    """`auto` is nccl exactly where every rank of every node has a GPU; all ranks are told."""
    nodes = [replace(node, nproc_per_node=nproc) for node in (A, B)]
    made = build_plan(spec(*nodes, backend=asked), told(*counts))

    assert made.backend == expected
    assert {share.env["DIST_BACKEND"] for share in made.nodes} == {expected}


def test_nccl_without_enough_gpus_is_refused() -> None:
    """The message names the node, the counts, and both ways out."""
    asked = spec(A, replace(B, nproc_per_node=2), backend="nccl")
    with pytest.raises(NotReady) as caught:
        build_plan(asked, told(2, 1))

    assert str(caught.value) == (
        "cluster.backend: nccl needs a GPU per rank, and b has 1 for 2 ranks\n"
        "    set cluster.backend=gloo, or fewer ranks with cluster.nodes.b.nproc_per_node"
    )


def test_a_torch_that_is_not_there_is_not_built_without_cuda() -> None:
    """What needs none is not told that its GPUs cannot be used."""
    python = Interpreter("/usr/bin/python3", "3.11")
    task = Task(name="t", kind="script", target="t.py", entry="plain")
    host = facts("a", "eth0 10.0.0.1/24", gpu_count=1, python=python)
    made = build_plan(spec(A, task=task), {"a": host})
    assert (made.notes, made.backend) == ((), "nccl")


def test_a_debugged_rank_is_one_of_the_run() -> None:
    """A lab test has one."""
    with pytest.raises(NotReady, match=r"debug.rank: there is no rank 4: this run has 0 to 1"):
        build_plan(spec(A, B, debug=Debug(4)), told(0, 0))


@pytest.mark.promise(14)
@pytest.mark.parametrize(
    ("given", "inherited", "expected"),
    [
        ({}, "", "{work}:{work}/src"),
        ({}, "/opt/lib", "{work}:{work}/src:/opt/lib"),
        ({"PYTHONPATH": "lib"}, "lib", "lib:{work}:{work}/src"),
        ({"PYTHONPATH": None}, "/opt/lib", None),
    ],
)
def test_python_looks_into_the_pushed_code(
    given: dict[str, str | None], inherited: str, expected: str | None
) -> None:
    """After what the user sets, before what the host sets; not where the user takes it out."""
    task = Task(name="t", kind="script", target="run.py", env=given)
    host = facts("gpu1", "eth0 10.0.0.1/24")
    host = replace(host, python=replace(host.python, python_path=inherited))
    code = CodeRef(release="0123", subdirectory="exp", commit="abc+", python_path=("..", "../src"))

    plan = build_plan(spec(Node("gpu1", "10.0.0.1"), task=task), {"gpu1": host}, code=code)

    env = plan.nodes[0].env
    work = f"/home/ada/.runner/runs/{plan.run_id}/gpu1/work"
    assert env.get("PYTHONPATH") == (expected and expected.format(work=work))
    assert (env["RUNNER_RELEASE"], env["RUNNER_COMMIT"]) == ("0123", "abc+")


def test_the_ssh_line_logs_in_as_the_launch_does() -> None:
    """With what the cluster's YAML says; a setting of the node wins."""
    node = Node("a", "gpu1", user="ada", port=2222)
    ssh = Ssh(user="bob", key="~/k y", config="/c", jump=("b1", "x@b2:23"), known_hosts="/k")
    assert ssh_forward(ssh, node, 5678) == (
        """ssh -N -L 5678:127.0.0.1:5678 -F /c -i "$HOME"/'k y' -o UserKnownHostsFile=/k"""
        " -J b1,x@b2:23 -l ada -p 2222 gpu1"
    )
    assert ssh_forward(Ssh(port=22), None, 1) == "ssh -N -L 1:127.0.0.1:1 -p 22 HOST"
