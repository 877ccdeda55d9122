"""States of the nodes of an attempt: losses that end it, and departures it survives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.wire.events import PeerDeparted, ProgramExited, ProgramStarted, RankStarted
from runner.core.wire.order import Hub, Program
from tests.unit.control.attempt.test_node_failure_detector import Scene

HUB = Hub("a", "10.0.0.1", 29513, member_count=2, min_nodes=2, required=False)


@pytest.fixture
def elastic() -> Scene:
    """Return three nodes of a run whose ranks torch assigns and restarts; two are enough."""
    scene = Scene()
    plan = scene.monitor.elastic.plan
    program = Program(max_restarts=1)
    shares = tuple(
        replace(
            share,
            ranks=(),
            order=replace(share.order, hub=HUB, first_rank=None, program=program),
        )
        for share in plan.nodes
    )
    scene.monitor.elastic.plan = replace(plan, nodes=shares)
    for share in shares:
        scene.nodes[share.node].node_plan = share
        rank = RankStarted("abc".index(share.node), 7, world_size=3, master="a:1")
        event(scene, share.node, ProgramStarted(7), 10.0)
        event(scene, share.node, rank, 10.0)
    return scene


def event(scene: Scene, node: str, body: object, at: float = 20.0) -> bool:
    """Report an event of a node; return whether the membership takes care of it."""
    return scene.monitor.on_membership_event(scene.nodes[node], body, at)  # type: ignore[arg-type]


@pytest.mark.parametrize(("silence_s", "counts"), [(0.5, False), (15.0, True)])
def test_a_departure_that_the_hub_reports(
    elastic: Scene, silence_s: float, *, counts: bool
) -> None:
    """It counts unless the node was started after it was declared."""
    assert event(elastic, "a", PeerDeparted("c", "silent", 2, silence_s=silence_s), 9.0)
    assert elastic.nodes["c"].is_lost is counts


def test_a_node_that_the_run_succeeded_without_is_stopped(elastic: Scene) -> None:
    """torch would wait for other nodes."""
    for rank, name in enumerate("ab"):
        event(elastic, name, RankStarted(rank, 9, world_size=2, master="a:2"), 40.0)
    assert not event(elastic, "a", ProgramExited(0), 50.0)
    assert not event(elastic, "b", ProgramExited(0), 50.0)
    assert elastic.said[-1] == "c came too late: the run had succeeded without it"
    assert event(elastic, "c", ProgramExited(1), 51.0)
