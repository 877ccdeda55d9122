"""The memberships of an elastic run: what is said about them, and whose failure counts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.control.attempt.elastic import ElasticMembership, Reaction
from runner.control.attempt.node import AttemptNode
from runner.control.attempt.states import NodeState
from runner.core.wire.events import Ended, Stopping
from runner.core.wire.order import Hub, Program
from runner.core.wire.states import Reason, ReasonKind, State
from tests.golden import builders
from tests.golden.builders import own

DIED = Reason(ReasonKind.SUPERVISOR, "b", detail="its supervisor died")
NODES = tuple(f"node{number}" for number in range(1, 13))


def two_nodes(min_nodes: int = 1) -> tuple[ElasticMembership, dict[str, AttemptNode]]:
    """An attempt of a and b, with one rank each, as torch puts them."""
    plan = builders.plan(1, 1)
    shares = []
    for share in plan.nodes:
        hub = Hub("a", "10.0.0.1", 29400, member_count=1, min_nodes=min_nodes)
        order = replace(share.order, first_rank=None, program=Program(max_restarts=1), hub=hub)
        shares.append(replace(share, ranks=(), order=order))
    state = NodeState.RUNNING
    fields: dict[str, Any] = {"is_lost": False, "state": state, "live_session": True}
    nodes = {s.node: SimpleNamespace(name=s.node, node_plan=s, **fields) for s in shares}
    attempt_nodes = cast("dict[str, AttemptNode]", nodes)
    return ElasticMembership(replace(plan, nodes=tuple(shares)), attempt_nodes), attempt_nodes


@pytest.mark.parametrize(
    ("min_nodes", "reason", "departs"),
    [(1, DIED, True), (2, DIED, False), (1, own("b", "its disk is full"), False)],
)
def test_a_run_goes_on_without_a_node_whose_supervisor_died(
    min_nodes: int, reason: Reason, departs: bool
) -> None:
    """Whoever's record is read first; what a living supervisor stops is stopped everywhere."""
    elastic, nodes = two_nodes(min_nodes)
    body = Stopping(reason)
    reaction = elastic.on_event(nodes["b"], body, 5.0, is_stopping=False, may_stop=True)
    assert (reaction.departure is not None) is departs
    assert reaction.handled is departs
    if reaction.departure is not None:
        assert reaction.departure == ("b", "its supervisor died", 5.0, 1)
        elastic.depart(reaction.departure)
        end = Ended(State.FAILED, DIED)
        assert elastic.on_event(nodes["b"], end, 5.1, is_stopping=False, may_stop=True) == Reaction(
            handled=True, next_state=NodeState.ENDED
        )
