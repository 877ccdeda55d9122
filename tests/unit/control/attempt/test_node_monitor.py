"""States of the nodes of an attempt: losses that end it, and departures it survives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.control.attempt.node import NodeState
from runner.core.wire.codec import Frame
from runner.core.wire.events import (
    Ended,
    EventBody,
    PeerDeparted,
    ProgramExited,
    ProgramStarted,
    RankStarted,
    Stopping,
)
from runner.core.wire.order import Hub
from runner.core.wire.states import Reason, ReasonKind, State
from tests.golden import builders
from tests.golden.builders import own
from tests.unit.control.attempt.test_node_failure_detector import Scene
from tests.unit.control.lying_host import elastic_plan

HUB = Hub("a", "10.0.0.1", 29513)


@pytest.fixture
def elastic() -> Scene:
    """Return three nodes of a run whose ranks torch assigns and restarts; two are enough."""
    plan = elastic_plan(builders.plan(1, 1, 1))
    shares = [
        replace(share, order=replace(share.order, hub=HUB, min_nodes=2, master_port=0))
        for share in plan.nodes
    ]
    scene = Scene(replace(plan, nodes=tuple(shares)))
    for share in shares:
        rank = RankStarted("abc".index(share.node), 7, world_size=3, master="a:1")
        event(scene, share.node, ProgramStarted(7), 10.0)
        event(scene, share.node, rank, 10.0)
    return scene


def event(scene: Scene, node: str, body: EventBody, at: float = 20.0) -> bool:
    """Report an event of a node; return whether the membership takes care of it."""
    return scene.monitor.elastic.on_event(scene.nodes[node], body, at)


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


@pytest.mark.promise(4, 12)
@pytest.mark.parametrize("kind", ["data", "in_progress"])
def test_a_host_that_has_ended_and_sends_nothing_is_not_waited_for(kind: str) -> None:
    """Whatever frames without bytes it sends in place of its logs."""
    scene = Scene()
    node = scene.nodes["c"]
    node.move_to(NodeState.ENDED)
    node.asked_at -= 3601
    node.last_data -= 16
    fields = {"id": 1, "file": "rank_2.out", "offset": 0}
    scene.monitor._dispatch(node.live_session, Frame(kind, fields))
    scene.tick()
    assert node.is_finished


@pytest.mark.parametrize(
    ("reason", "is_gone"),
    [
        (Reason(ReasonKind.SUPERVISOR, "c", detail="its supervisor died"), True),
        (own("c", "its disk is full"), False),
    ],
)
def test_a_run_goes_on_without_a_node_whose_supervisor_died(
    elastic: Scene, reason: Reason, *, is_gone: bool
) -> None:
    """What a living supervisor stops is stopped everywhere."""
    assert event(elastic, "c", Stopping(reason)) is is_gone
    assert elastic.nodes["c"].is_lost is is_gone
    assert event(elastic, "c", Ended(State.FAILED, reason)) is is_gone
    assert (elastic.nodes["c"].state is NodeState.ENDED) is is_gone
