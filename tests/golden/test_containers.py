"""Commands of container engines: what a host runs, and what a person would type."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from runner.core.codec import encode
from runner.core.launch import environment
from runner.core.model.container import CommandAnswer, ContainerFacts
from runner.core.model.facts import System
from runner.core.model.plan import NodePlan, Plan
from runner.core.planning.build_plan import build_plan
from runner.core.spec import Cluster, ContainerSpec, Mount, Node, Secret, Task
from tests.golden.builders import SHIPPED, facts, spec
from tests.golden.conftest import Check

WHOLE = ("docker", "apptainer")
"""One engine with a daemon, and one whose containers are our children."""

NODES = (Node("gpu1", "gpu1", gpus=2), Node("gpu2", "gpu2", gpus=(1, 3)))


def container_spec(engine: str) -> ContainerSpec:
    """All keys set, but for the shared memory of the host."""
    has_csv = engine in ("docker", "podman")
    return ContainerSpec(
        engine=engine,
        program=engine,
        image="lab/train:1",
        mounts=(Mount("/data,old" if has_csv else "/old", "/data", read_only=True),),
        shm_size="16g",
        ulimits={"nofile": "65536"},
        extra=("--memory=64g",),
    )


def plan(engine: str, **changes: Any) -> Plan:
    """Two nodes with GPUs, one of them with InfiniBand."""
    answers = ContainerFacts(f"/usr/bin/{engine}", CommandAnswer(0, "1"), CommandAnswer(0, ""))
    hosts = {
        node.name: replace(
            facts(node.name, f"eth0 10.0.0.{index + 1}/24", gpu_count=4),
            container=answers,
            uid=1000,
            gid=1000,
            groups=(44, 107),
            host_python="/usr/bin/python3",
            system=System(infiniband=("mlx5_0",) if index else ()),
        )
        for index, node in enumerate(NODES)
    }
    wanted = spec(*NODES, task=SHIPPED, container=container_spec(engine))
    return build_plan(replace(wanted, **changes), hosts)


def _client(node: NodePlan) -> tuple[str, ...]:
    assert node.order.container
    return node.order.container.client


@pytest.mark.parametrize("engine", WHOLE)
def test_commands(engine: str, check_golden: Check) -> None:
    """Each word of them, for the supervisor and for a person."""
    made = plan(engine)
    parts = [
        {"typed": node.command, "argv": _client(node), "container": encode(node.order.container)}
        for node in made.nodes
    ]
    check_golden(f"container_{engine}.json", json.dumps(parts, indent=1) + "\n")


def test_a_command_to_paste_needs_nothing_that_only_a_launch_makes() -> None:
    """No folder of the run where the code is on the host; secrets come from who pastes it."""
    task = Task(name="own", kind="script", target="/code/train.py")
    secrets = {"TOKEN": Secret("t")}
    node = plan("docker", task=task, cluster=Cluster(project="/code"), secrets=secrets).nodes[0]
    assert not [word for word in node.command if "/runs/" in word]
    assert "HOME=/tmp" in node.command
    assert "TOKEN" in node.command
    assert "HOME" not in node.env  # of the engine's client
    assert environment(node.order)["HOME"].endswith("/home")
