"""Plans as `dry_run` shows them, some of them whole, as data; and commands in containers."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from runner.core.planning.build_plan import build_plan
from runner.core.spec import Cluster, ContainerSpec, Mount, Node, Secret, Task
from runner.core.wire.codec import decode, encode
from runner.core.wire.plan import Plan
from runner.host.supervisor.program import command
from tests.golden.builders import SHIPPED, facts, spec
from tests.golden.cases import CASES, SETTINGS, Case
from tests.golden.conftest import Check

WHOLE = {
    "chosen-gpus",
    "hard-arguments",
    "pushed",
    "c10d-elastic",
    "relaunch",
}
"""Cases whose plans are also on record as data."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_plan_is_as_recorded(case: Case, check_golden: Check) -> None:
    """To the letter, as a person sees it and as data; what is on disk is the plan again."""
    check_golden(f"{case.name}.txt", case.text())
    data = json.dumps(encode(case.plan), indent=1) + "\n"
    if case.name in WHOLE:
        check_golden(f"{case.name}.json", data)
    assert decode(Plan, json.loads(data)) == case.plan


@pytest.mark.promise(7)
def test_no_plan_holds_a_secret() -> None:
    """It names secrets, on the screen and on record."""
    for text in (SETTINGS.text(), json.dumps(encode(SETTINGS.plan))):
        assert "WANDB_API_KEY" in text
        assert "hunter" not in text


NODES = (Node("gpu1", "gpu1", gpus=2), Node("gpu2", "gpu2", gpus=(1, 3)))
ENGINES = ("docker", "podman")


def plan(container: ContainerSpec, **changes: Any) -> Plan:
    """Two nodes with GPUs, one of them with InfiniBand."""
    hosts = {
        node.name: replace(
            facts(node.name, f"eth0 10.0.0.{index + 1}/24", gpu_count=4),
            uid=1000,
            gid=1000,
            groups=(44, 107),
            host_python="/usr/bin/python3",
            infiniband=("mlx5_0",) if index else (),
        )
        for index, node in enumerate(NODES)
    }
    wanted = spec(*NODES, task=SHIPPED, container=container)
    return build_plan(replace(wanted, **changes), hosts)


def lines(words: Sequence[str]) -> list[str]:
    return re.split(r" (?=--)", shlex.join(words))


@pytest.mark.parametrize("engine", ENGINES)
def test_commands(engine: str, check_golden: Check) -> None:
    """Each word of them, for the supervisor and for a person."""
    container = ContainerSpec(
        engine=engine,
        program=engine,
        image="lab/train:1",
        mounts=(Mount("/data,old", "/data", read_only=True),),
        shm_size="16g",
        extra=("--memory=64g",),
    )
    parts = []
    for node in plan(container, secrets={"TOKEN": Secret("t")}).nodes:
        made = node.order.container
        assert made is not None
        parts.append(
            {
                "typed": lines(node.command),
                "started": lines(command(node.order)),
                "find": lines(made.find),
                "remove": lines(made.remove),
            }
        )
    check_golden(f"container_{engine}.json", json.dumps(parts, indent=1) + "\n")


def test_words_of_another_engine_come_first() -> None:
    """The rest is as without it: nothing is renumbered, nobody is another user."""
    words = ("apptainer", "exec", "--nv", "/images/train.sif")
    inside = plan(ContainerSpec(prefix=words)).nodes[1]
    without = plan(ContainerSpec()).nodes[1]
    assert inside.command == (*words, *without.command)
    assert command(inside.order)[: len(words)] == words
    assert inside.order.program.env == without.order.program.env
    assert inside.order.program.env["CUDA_VISIBLE_DEVICES"] == "1,3"


def test_a_command_to_paste_needs_nothing_that_only_a_launch_makes() -> None:
    """No folder of the run where the code is on the host; secrets come from who pastes it."""
    task = Task(name="own", kind="script", target="/code/train.py")
    docker = ContainerSpec(engine="docker", program="docker", image="train:1")
    changes = {"cluster": Cluster(project="/code"), "secrets": {"TOKEN": Secret("t")}}
    node = plan(docker, task=task, **changes).nodes[0]
    assert not [word for word in node.command if "/runs/" in word or "runner.run" in word]
    assert "HOME=/tmp" in node.command
    assert "TOKEN" in node.command
    assert "HOME" not in node.env  # of the engine's client
    assert node.order.program.env["HOME"].endswith("/home")
