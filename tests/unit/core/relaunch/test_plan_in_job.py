"""Plan of a job's attempt, made by its first node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner.core.model.release import CodeRef
from runner.core.model.run_info import PastAttempt, RunInfo
from runner.core.relaunch.handover import RelaunchContext, relaunch_context
from runner.core.relaunch.next_attempt import plan_in_job
from runner.core.spec import Node, Relaunch, Secret, SlurmSpec
from tests.golden.builders import RUN_ID, SCRIPT, spec
from tests.unit.core.relaunch.test_handover import told

LOGIN = Node("login", "hpc.example", nproc_per_node=2)
INFO = RunInfo(RUN_ID, "hpc", "train", launched_by="ada@desk", launched_at=1.7e9)
FACTS = told("abc")
PAST = (
    PastAttempt(0, ("a", "b"), "its job was started again"),
    PastAttempt(1, ("b", "c"), "its job was started again"),
)


def context(spares: int = 0, relaunches: int = 0, **fields: Any) -> RelaunchContext:
    """What the launch has submitted: a job of three nodes."""
    asked = spec(
        LOGIN,
        slurm=SlurmSpec(nnodes=3, spares=spares),
        relaunch=Relaunch(relaunches, 1.0),
        secrets={"TOKEN": Secret("hunter2")},
        **fields,
    )
    return relaunch_context(asked, CodeRef(), INFO, "seed: 1\n", ())


def test_a_job_that_starts_again_makes_another_attempt() -> None:
    """After those before it, perhaps on other nodes."""
    made = plan_in_job(context(relaunches=1), ["b", "a"], FACTS, PAST)
    plan, info = made.orders.plan, made.context.info
    assert (plan.attempt, [part.node for part in plan.nodes]) == (2, ["b", "a"])
    assert info.past_attempts == PAST
    assert {order.attempt for order in made.orders.orders.values()} == {2}
    assert info.relaunches_left == 1


def test_spares_of_a_job_stand_by() -> None:
    """The last nodes; they have orders that start nothing, and take part in the decision."""
    made = plan_in_job(context(spares=1, relaunches=2), ["a", "b", "c"], FACTS)
    assert [part.node for part in made.orders.plan.nodes] == ["a", "b"]
    assert list(made.orders.standby) == ["c"]
    assert made.orders.standby["c"].is_standby
    assert [voter.node for voter in made.orders.voters] == ["a", "b", "c"]
    assert [node.name for node in made.context.spec.spares] == ["c"]
    assert made.context.info.standby_nodes == ("c",)
    assert {order.relaunches_left for order in made.orders.orders.values()} == {2}


def test_ranks_like_tasks_of_srun_know_their_place() -> None:
    """The spawner starts them; what is printed is what srun would be given."""
    asked = context(task=replace(SCRIPT, entry="srun", words=("--lr", "0.1")))
    (first, second) = plan_in_job(asked, ["b", "a"], FACTS).orders.plan.nodes
    order = second.order
    assert second.command[:2] == ("srun", "--ntasks-per-node=2")
    assert second.command[-2:] == ("--lr", "0.1")
    at = next(at for at, word in enumerate(order.argv) if word.endswith("/spawner.py"))
    assert order.argv[at + 1 : at + 3] == ("2", "2")
    assert (first.ranks, second.ranks) == ((0, 1), (2, 3))
    assert order.spawns_ranks
    expected = {"MASTER_ADDR": "10.0.0.2", "NODE_RANK": "1", "WORLD_SIZE": "4"}
    assert {name: order.env.get(name) for name in expected} == expected
    assert order.env["MASTER_PORT"] == first.order.env["MASTER_PORT"]
