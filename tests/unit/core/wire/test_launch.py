"""What a host makes of an order: torchrun's options for every backend, and a new attempt's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.core.planning.build_plan import build_plan
from runner.core.spec import Node, Relaunch, Spec, Task
from runner.core.wire.order import Order, Program, command_words, environment, torchrun_options
from runner.core.wire.plan import next_attempt
from tests.golden.builders import facts, spec


def by(backend: str, **numbers: Any) -> Order:
    program = Program(entry="torchrun", rdzv_backend=backend, max_restarts=3)
    usual: dict[str, Any] = {"node_rank": 1, "nnodes": 2, "nproc": 4, "master_port": 29500}
    usual |= {"master_addr": "10.0.0.1", "local_addr": "10.0.0.2"}
    return Order("r", "b", 0, "/w", "/w", program, **{**usual, **numbers})


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        pytest.param(
            by("c10d", node_rank=0, min_nodes=1, master_addr="fd00::1", local_addr="fd00::1"),
            "--nnodes=1:2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=[fd00::1]:29500 "
            "--rdzv_id=r --rdzv_conf=is_host=1 --local_addr=fd00::1 --max_restarts=3",
            id="c10d, elastic, its host, IPv6",
        ),
        pytest.param(
            by("standalone", master_addr="127.0.0.1"),
            "--standalone --nproc_per_node=4 --local_addr=127.0.0.1 --max_restarts=3",
            id="standalone",
        ),
    ],
)
def test_every_node_is_told_how_to_meet(order: Order, expected: str) -> None:
    """At an IPv6 address, too, or without one; other backends are in tests/golden/plans."""
    assert torchrun_options(order) == tuple(expected.split())


NODES = tuple(Node(name, f"10.0.0.{n}", nproc_per_node=2) for n, name in enumerate("abc", start=1))


def asked(names: str, spares: str, entry: str) -> Spec:
    by_name = {node.name: node for node in NODES}
    return spec(
        *(by_name[name] for name in names),
        spares=tuple(by_name[name] for name in spares),
        task=Task(name="t", kind="script", target="t.py", words=("$RANK",), entry=entry),
        relaunch=Relaunch(2),
        env={"TORCH_FR_BUFFER_SIZE": "9"},
    )


@pytest.mark.parametrize("entry", ["torchrun", "launch", "plain", "srun"])
def test_another_attempt_takes_other_numbers_and_no_plan(entry: str) -> None:
    """A spare's order with them starts what the planner would have it start; it has its pause."""
    told = {
        node.name: facts(node.name, f"eth0 {node.host}/24", spare_ports=(29514,), hub_port=29600)
        for node in NODES
    }
    first = build_plan(asked("ab", "c", entry), told)
    told["a"] = replace(told["a"], reserved_port=29514, spare_ports=())
    second = build_plan(asked("ac", "", entry), told, attempt=1, relaunches_left=1).node("c").order
    (spare,) = first.spares
    assert spare.order.is_standby
    orders = {share.node: share.order for share in (*first.nodes, spare)}
    upcoming = next_attempt(orders, {"b"}, ["c"])
    assert isinstance(upcoming, dict)
    now = upcoming["c"]
    assert command_words(now) == command_words(second)
    assert environment(now) == environment(second)
    assert "attempt_1" in " ".join(command_words(now))
    assert environment(now)["RUNNER_ATTEMPT"] == "1"
    assert now == replace(second, detached=True)
