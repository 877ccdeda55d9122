"""Check of the debugged rank: what is missing on its node, and on no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.checks.base import CheckContext, all_checks
from runner.core.errors import NotReady
from runner.core.model.facts import Facts
from runner.core.model.plan import DebugRank
from runner.core.model.release import CodeRef
from runner.core.model.results import Level
from runner.core.model.spec import Node, Rendezvous, Spec
from runner.core.planning.build_plan import build_plan
from runner.core.planning.readiness import facts_request
from tests.golden.builders import TORCH, facts, spec

NODES = (Node("a", "10.0.0.1", nproc=2), Node("b", "10.0.0.2", nproc=2))
DEBUGPY = replace(TORCH, packages={"debugpy": "1.8.22"})
NOTHING = replace(TORCH, packages={})


def hosts(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Facts]:
    """Both hosts, which have debugpy unless told otherwise."""
    return {
        "a": facts("a", "eth0 10.0.0.1/24", **{"python": DEBUGPY, **a}),
        "b": facts("b", "eth0 10.0.0.2/24", **{"python": DEBUGPY, **b}),
    }


def look(asked: Spec, a: dict[str, Any], b: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The errors, with their hints."""
    found = all_checks()["debug"](CheckContext(asked, hosts(a, b)))
    return [(each.node, each.message, each.hint) for each in found if each.level is Level.ERROR]


def test_only_the_node_of_the_rank_counts() -> None:
    """There debugpy has to be, and the port free; what is not known is no error."""
    asked = spec(*NODES, debug=DebugRank(2, 5679))
    in_use = {"debug_port_error": "is in use"}
    assert look(asked, {"python": NOTHING, **in_use}, {}) == []
    python = TORCH.executable
    assert look(asked, {}, {"python": NOTHING, **in_use}) == [
        (
            *("b", f"debug.rank: no debugpy in {python}, which starts rank 2"),
            f"install it there: {python} -m pip install debugpy",
        ),
        (
            *("b", "debug.port: port 5679 is in use on this host"),
            "set debug.port to one that is free there",
        ),
    ]
    assert look(asked, {}, {"python": replace(TORCH, packages=None)}) == []
    assert look(asked, {}, {"python": replace(NOTHING, substitutes={"debugpy": "debugpy"})}) == []
    assert look(spec(*NODES), {"python": NOTHING}, {"python": NOTHING}) == []
    elastic = replace(asked, rendezvous=Rendezvous("c10d"))
    assert [node for node, _, _ in look(elastic, {"python": NOTHING}, in_use)] == ["a", "b"]


def test_a_rank_that_the_run_does_not_have() -> None:
    """The legal ones are named, by the check and by the plan."""
    asked = spec(*NODES, debug=DebugRank(4))
    message = "there is no rank 4: this run has 0 to 3"
    assert look(asked, {}, {}) == [("debug.rank", message, "")]
    with pytest.raises(NotReady, match=f"debug.rank: {message}"):
        build_plan(asked, hosts({}, {}))
    with pytest.raises(NotReady, match="there is no rank 1: this run has 0 alone"):
        build_plan(spec(Node("a", "10.0.0.1"), debug=DebugRank(1)), hosts({}, {}))


def test_hosts_are_asked_and_shims_told() -> None:
    """The stall watch is off; nothing of it is asked or told without a debugged rank."""
    asked = spec(*NODES, debug=DebugRank(3), stall_s=300.0)
    request = facts_request(asked, NODES[0], CodeRef())
    assert ("debugpy" in request.packages, request.debug_port) == (True, 5678)
    plan = build_plan(asked, hosts({}, {}))
    for share in plan.nodes:
        assert share.order.env["RUNNER_DEBUG_RANK"] == "3:5678"
        assert share.order.stall_s == 0
        assert "RUNNER_DEBUG_RANK" not in share.env
    assert plan.debug == DebugRank(3)
    (note,) = (note for note in plan.notes if "debugger" in note)
    assert note.startswith("rank 3 on b waits for a debugger: ")
    assert f"forward --run {plan.run_id} 5678` in another terminal" in note

    elastic = replace(asked, rendezvous=Rendezvous("c10d"))
    (note,) = (n for n in build_plan(elastic, hosts({}, {})).notes if "debugger" in n)
    assert f"forward --run {plan.run_id} --node NODE 5678`" in note

    plain = replace(asked, debug=None)
    request = facts_request(plain, NODES[0], CodeRef())
    assert ("debugpy" in request.packages, request.debug_port) == (False, 0)
    order = build_plan(plain, hosts({}, {})).nodes[0].order
    assert ("RUNNER_DEBUG_RANK" in order.env, order.stall_s) == (False, 300.0)
