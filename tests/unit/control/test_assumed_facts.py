"""Assumed facts of `dry_run=offline`, and the note about them."""

from __future__ import annotations

from runner.control.assumed_facts import assumed_facts
from runner.core.model.facts import Facts
from runner.core.model.spec import Node, PortRange
from runner.core.planning.build_plan import build_plan
from tests.golden.builders import spec

A = Node("a", "alias-a", gpu_count=2)


def test_everything_assumed_is_said() -> None:
    """GPUs, port, interfaces, cores: each gap in the YAML has its line."""
    _, _, assumed = assumed_facts(spec(A, Node("b", "b"), Node("c", "c")))

    assert assumed == [
        "python3 and ~/.runner are as written here, and torch is there",
        "every rank has one core (OMP_NUM_THREADS)",
        "the ranks meet at alias-a; each host's interface is found at launch",
        "port 29500; a launch takes a free one of the master's",
        "no GPU on b, c (gpus is auto)",
    ]


def test_what_the_yaml_says_is_not_assumed() -> None:
    """Chosen GPUs and ports are as chosen."""
    asked, told, assumed = assumed_facts(
        spec(
            Node("a", "a", gpu_ids=(1, 3), gpu_count=2),
            master_port=PortRange(29600, 29700),
            python="/opt/python",
        )
    )
    plan = build_plan(asked, told)

    assert assumed == [
        "/opt/python and ~/.runner are as written here, and torch is there",
        "every rank has one core (OMP_NUM_THREADS)",
    ]
    assert (plan.node("a").gpus, plan.master_port, plan.backend) == ((1, 3), 29600, "nccl")


def test_addr_is_where_the_ranks_meet() -> None:
    """The user's own `addr` needs no assumption of ours."""
    asked, told, _ = assumed_facts(spec(Node("a", "a", addr="10.9.0.1", gpu_count=1), A))

    assert build_plan(asked, told).master_addr == "10.9.0.1"


def test_nothing_else_is_invented() -> None:
    """Facts nobody can know stay at their defaults, so that no plan depends on them."""
    _, told, _ = assumed_facts(spec(A))

    assert told["a"].interfaces == Facts("a").interfaces
    assert told["a"].preset_env == {}
