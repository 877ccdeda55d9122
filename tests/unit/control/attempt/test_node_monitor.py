"""States of the nodes of an attempt: losses that end it, and departures it survives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.model.plan import Hub
from runner.core.protocol.events import (
    Ended,
    EndUnverified,
    HostLost,
    PeerDeparted,
    ProgramExited,
    ProgramStarted,
    RankStarted,
)
from runner.core.protocol.states import State
from tests.unit.control.attempt.test_node_failure_detector import Scene

HUB = Hub("a", "10.0.0.1", 29513, member_count=2, min_nodes=2, required=False)


@pytest.fixture
def scene() -> Scene:
    """Return three nodes of a static run."""
    return Scene()


@pytest.fixture
def elastic(scene: Scene) -> Scene:
    """Return three nodes of a run whose ranks torch assigns and restarts; two are enough."""
    plan = scene.monitor.elastic.plan
    shares = tuple(
        replace(share, ranks=(), order=replace(share.order, hub=HUB, restarts_ranks=True))
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


def lose(scene: Scene, node: str) -> None:
    """Let a node be silent for longer than `lost_s`, with no other in touch with it."""
    scene.monitor.peer_status.on_rejoin(node)
    scene.out_of_reach(node, seconds=16)
    scene.tick()


def states(scene: Scene) -> list[str]:
    """Return the state of each node."""
    return [node.state.value for node in scene.nodes.values()]


def test_a_static_run_ends_with_a_lost_node(scene: Scene) -> None:
    """The others are stopped; the lost node may still report its end."""
    lose(scene, "c")
    assert scene.kinds()[0] is HostLost
    assert states(scene) == ["running", "running", "lost"]
    assert scene.stop.requested is not None
    scene.monitor.on_ended(scene.nodes["c"], Ended(State.STOPPED, ""))
    assert states(scene) == ["running", "running", "ended"]


def test_an_elastic_run_goes_on_without_a_node(elastic: Scene) -> None:
    """As long as enough are left."""
    lose(elastic, "c")
    assert elastic.kinds() == [PeerDeparted]
    assert "c was lost" in elastic.said[-1]
    assert "goes on with 2 nodes" in elastic.said[-1]
    assert elastic.stop.requested is None
    lose(elastic, "b")
    assert elastic.stop.requested is not None


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


def test_a_disk_that_does_not_answer_is_said_once_and_ends_nothing(elastic: Scene) -> None:
    """And why a host has not reported its end."""
    node = elastic.nodes["b"]
    for wait_s in (1.0, 6.0, 27.4, 0.0, 2.0):
        elastic.monitor.on_pong(node, wait_s)
    assert elastic.said == [
        "b: its disk has not answered for 6 s; the run goes on",
        "b: its disk answers again",
    ]
    elastic.monitor.on_pong(node, 30.0)
    elastic.stop.begin("enough")
    elastic.stop.deadline = 0.0
    elastic.tick()
    reasons = {e.node: e.body.reason for e in elastic.events if isinstance(e.body, EndUnverified)}
    assert reasons["b"] == "its disk has not answered for 30 s"
    assert reasons["c"] == "it did not report its end"
