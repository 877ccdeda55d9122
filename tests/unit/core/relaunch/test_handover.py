"""Handover: what hosts need to relaunch a run by themselves."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from runner.core.codec import decode, encode
from runner.core.errors import NotReady
from runner.core.model.facts import Facts
from runner.core.model.release import CodeRef
from runner.core.model.run_info import PastAttempt
from runner.core.planning.build_plan import build_plan
from runner.core.relaunch.handover import (
    AttemptOrders,
    NextAttempt,
    RelaunchContext,
    relaunch_context,
    run_info,
)
from runner.core.relaunch.next_attempt import assign_voters, plan_next_attempt
from runner.core.spec import ContainerSpec, Node, Relaunch, Secret, Spec
from tests.golden.builders import facts, spec

HUB = 29513


def told(names: str, **others: object) -> dict[str, Facts]:
    """Facts of hosts a, b, …, each with a port for the hub and one as a voter."""
    return {
        name: facts(
            name,
            f"eth0 10.0.0.{number}/24",
            hub_port=HUB,
            vote_port=40000 + number,
            **others,  # type: ignore[arg-type]
        )
        for number, name in ((1 + "abcdefgh".index(name), name) for name in names)
    }


def asked(used: str, spares: str = "", **others: object) -> Spec:
    """A spec of nodes a, b, …, of which some are spare."""
    nodes, more = (tuple(Node(n, n, nproc_per_node=1) for n in names) for names in (used, spares))
    return replace(spec(*nodes, relaunch=Relaunch(2, 1.0)), spares=more, **others)  # type: ignore[arg-type]


def enrolled(wanted: Spec, known: dict[str, Facts], left: int = 2) -> AttemptOrders:
    return assign_voters(wanted, build_plan(wanted, known), known, left)


def begun(wanted: Spec, known: dict[str, Facts]) -> RelaunchContext:
    """What its hosts know, after it crossed the wire."""
    made = enrolled(wanted, known)
    info = run_info(made.plan, "ada@desk", 1700000000.0, (), 1)
    sent = json.dumps(encode(relaunch_context(wanted, CodeRef(), info, "a: 1\n", made.voters)))
    return decode(RelaunchContext, json.loads(sent))


def test_the_master_is_gone() -> None:
    """The next one leads, the spare takes part, and both attempts are on record."""
    now = begun(asked("abc", "d"), told("abcd"))
    ended = PastAttempt(0, ("a", "b", "c"), "lost a", 9.0, ("a",))
    made = plan_next_attempt(now, ended, 1, told("bcd"))
    assert [share.node for share in made.orders.plan.nodes] == ["b", "c", "d"]
    assert made.orders.plan.attempt == 1
    assert decode(NextAttempt, json.loads(json.dumps(encode(made)))) == made
    assert made.orders.orders["b"].reserve_port
    assert made.orders.orders["d"].hub == made.orders.orders["b"].hub
    assert {order.disconnect_s for order in made.orders.orders.values()} == {0.0}
    assert made.context.info.past_attempts == (ended,)
    assert [voter.node for voter in made.context.voters] == ["b", "c", "d"]


def test_who_failed_stands_by_from_now_on() -> None:
    """A suspect makes room, and is there in case."""
    now = begun(asked("ab", "c"), told("abc"))
    made = plan_next_attempt(now, PastAttempt(0, ("a", "b"), "rank 1"), 1, told("abc"), {"b"})
    assert [share.node for share in made.orders.plan.nodes] == ["a", "c"]
    assert list(made.orders.standby) == ["b"]


def test_a_spare_has_no_container() -> None:
    """It starts none, so that its end need not ask an engine whether one is gone."""
    docker = ContainerSpec(engine="docker", program="docker", image="lab/train:1")
    known = told("abc", host_python="/usr/bin/python3")
    made = enrolled(asked("ab", "c", container=docker), known)
    has_container = {name: order.container is not None for name, order in made.orders.items()}
    assert has_container == {"a": True, "b": True, "c": False}


def test_too_few_are_left() -> None:
    """That is said with numbers."""
    now = begun(asked("abc"), told("abc"))
    with pytest.raises(NotReady, match="2 of 3 nodes are left for 3"):
        plan_next_attempt(now, PastAttempt(0, ("a", "b", "c"), "lost a"), 1, told("bc"))


def test_secrets_have_no_values_there() -> None:
    """Only their names reach the others."""
    now = begun(asked("ab", secrets={"TOKEN": Secret("hunter2")}), told("ab"))
    assert now.secrets == ("TOKEN",)
    assert "hunter2" not in json.dumps(encode(now))
    made = plan_next_attempt(now, PastAttempt(0, ("a", "b"), "rank 1"), 1, told("ab"))
    assert made.orders.plan.secrets == ("TOKEN",)
    assert made.context.secrets == ("TOKEN",)
