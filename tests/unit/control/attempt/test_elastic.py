"""The memberships of an elastic run: what is said about them, and whose failure counts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.control.attempt.elastic import ElasticMembership, Reaction, describe_membership
from runner.control.attempt.node import AttemptNode
from runner.core.model.plan import Hub
from runner.core.outcome.membership import Membership
from runner.core.protocol.events import (
    Ended,
    EventBody,
    ProgramExited,
    RankExited,
    RankStarted,
    StopCause,
    Stopping,
)
from runner.core.protocol.states import NodeState, State
from runner.ui.layout import fold_names
from tests.golden import builders

NODES = tuple(f"node{number}" for number in range(1, 13))


@pytest.mark.parametrize(
    ("joined", "left", "compared", "text"),
    [
        ((), ("b",), True, "membership 2: 1 node, 2 ranks (b left)"),
        (("a",), ("b", "c"), True, "membership 2: 1 node, 2 ranks (b,c left, a joined)"),
        ((), NODES, True, "membership 2: 1 node, 2 ranks (node[1-12] left)"),
        ((), (), True, "membership 2: 1 node, 2 ranks (the same nodes)"),
        ((), (), False, "membership 2: 1 node, 2 ranks"),
    ],
)
def test_a_membership_in_a_line(
    joined: tuple[str, ...], left: tuple[str, ...], compared: bool, text: str
) -> None:
    """How large it is, and who came and went, where that is known."""
    ranks = {0: ("a", 2), 1: ("a", 2)}
    membership = Membership(2, "a:2", 2, 5.0, ranks, joined, left, compared)
    assert describe_membership(membership, fold_names) == text
    membership.restarts, membership.max_restarts = 3, 9
    assert describe_membership(membership, fold_names) == f"{text}; restart 3 of 9"


def two_nodes(min_nodes: int = 1) -> tuple[ElasticMembership, dict[str, AttemptNode]]:
    """An attempt of a and b, with one rank each, as torch puts them."""
    plan = builders.plan(1, 1)
    shares = []
    for share in plan.nodes:
        hub = Hub("a", "10.0.0.1", 29400, member_count=1, min_nodes=min_nodes)
        order = replace(share.order, ranks=(), restarts_ranks=True, hub=hub)
        shares.append(replace(share, ranks=(), order=order))
    state = NodeState.RUNNING
    fields: dict[str, Any] = {"is_lost": False, "state": state, "live_session": True}
    nodes = {s.node: SimpleNamespace(name=s.node, node_plan=s, **fields) for s in shares}
    attempt_nodes = cast("dict[str, AttemptNode]", nodes)
    return ElasticMembership(replace(plan, nodes=tuple(shares)), attempt_nodes), attempt_nodes


def test_first_rank_that_fails_is_named_until_the_next_membership() -> None:
    """The others only notice it, so that their tracebacks can be folded."""
    elastic, attempt_nodes = two_nodes()

    def react(name: str, body: EventBody, at: float) -> Reaction:
        return elastic.on_event(attempt_nodes[name], body, at, is_stopping=False, may_stop=True)

    for rank, name in enumerate("ab"):
        assert not react(name, RankStarted(rank, 9, 1, 2, 2, "a:1"), 1.0).recovered
    failed = react("b", RankExited(1, code=1), 2.0)
    assert (failed.failed_rank, failed.handled) == (1, True)
    assert react("a", RankExited(0, code=1), 2.1).failed_rank is None
    react("a", RankStarted(0, 9, 2, 2, 2, "a:2"), 3.0)
    again = react("b", RankStarted(1, 9, 2, 2, 2, "a:2", 1, 9), 3.1)
    assert again.recovered
    assert again.message.endswith("restart 1 of 9")


@pytest.mark.parametrize(("may_stop", "told"), [(True, ("b",)), (False, ())])
def test_only_who_may_stop_a_run_stops_a_node_that_came_too_late(
    may_stop: bool, told: tuple[str, ...]
) -> None:
    """Who reads an ended run again gets the events of one host after those of another."""
    elastic, nodes = two_nodes()
    reaction = Reaction()
    for body in (RankStarted(0, 9, 1, 1, 1, "a:1"), ProgramExited(code=0)):
        reaction = elastic.on_event(nodes["a"], body, 1.0, is_stopping=False, may_stop=may_stop)
    assert reaction.surplus == told


@pytest.mark.parametrize(
    ("min_nodes", "cause", "departs"),
    [(1, StopCause.DEATH, True), (2, StopCause.DEATH, False), (1, StopCause.LOCAL, False)],
)
def test_a_run_goes_on_without_a_node_whose_supervisor_died(
    min_nodes: int, cause: StopCause, departs: bool
) -> None:
    """Whoever's record is read first; what a living supervisor stops is stopped everywhere."""
    elastic, nodes = two_nodes(min_nodes)
    body = Stopping("its supervisor died", cause)
    reaction = elastic.on_event(nodes["b"], body, 5.0, is_stopping=False, may_stop=True)
    assert (reaction.departure is not None) is departs
    assert reaction.handled is departs
    if reaction.departure is not None:
        assert reaction.departure == ("b", "its supervisor died", 5.0, 1)
        elastic.depart(reaction.departure)
        end = Ended(State.FAILED, "its supervisor died")
        assert elastic.on_event(nodes["b"], end, 5.1, is_stopping=False, may_stop=True) == Reaction(
            handled=True, next_state=NodeState.ENDED
        )
