"""The failure detector: lost nodes, and nodes worth waiting for."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from runner.control.attempt import node_failure_detector as limits
from runner.control.attempt.attempt import Attempt, Role
from runner.control.attempt.monitor import AttemptMonitor
from runner.control.attempt.node import Backoff, NodeState
from runner.control.attempt.peer_status import PeerStatus
from runner.control.rpc.session import HostSession, Inbox
from runner.control.rpc.wait import NO_ANSWER
from runner.core.spec import Node
from runner.core.wire.events import EndUnverified, Event, HostLost, HubJoined
from runner.core.wire.plan import Plan
from runner.core.wire.timing import ANSWER_TIMEOUT_S
from tests.golden import builders
from tests.unit.control.rpc.test_wait import FakeSession

LONG = 100_000.0


class Scene:
    """Three nodes of one attempt, all in touch with us and with each other."""

    def __init__(self, plan: Plan | None = None) -> None:
        self.events: list[Event] = []
        self.said: list[str] = []
        spec = builders.spec(*(Node(name, name) for name in "abc"), lost_s=15.0, disconnect_s=600.0)
        self.sessions = {name: FakeSession(name) for name in "abc"}
        self.console = MagicMock(is_full=False)
        self.attempt = Attempt(
            spec=spec,
            plan=plan or builders.plan(1, 1, 1),
            sessions=cast("dict[str, HostSession]", self.sessions),
            console=self.console,
            record=self.events.append,
            log=lambda *_: None,
            say=self.said.append,
        )
        self.monitor = AttemptMonitor(self.attempt, MagicMock(), Inbox())
        self.monitor.add_planned_nodes()
        self.nodes = self.monitor.nodes
        self.stop = self.monitor.stop
        for node in self.nodes.values():
            node.move_to(NodeState.RUNNING)
            node.supervisor_started = True
            self.monitor.peer_status.on_event(node, HubJoined())

    def tick(self) -> None:
        self.monitor.check_nodes(time.monotonic())

    def out_of_reach(self, *names: str, seconds: float) -> None:
        """Nothing was heard of some nodes for that time, and reconnecting failed."""
        for name in names:
            last_heard = time.monotonic() - seconds
            connection = self.nodes[name].connection
            connection.session, connection._last_heard = None, last_heard
            connection.backoff = Backoff("no route", last_heard, tries=9)

    def settled(self, *names: str) -> None:
        for name in names:
            self.nodes[name].move_to(NodeState.ENDED)
            self.nodes[name].finish()

    def kinds(self) -> list[type]:
        return [type(event.body) for event in self.events]


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.promise(4)
def test_silent_connection_is_left_for_another(scene: Scene) -> None:
    """Nothing more is expected of it."""
    node = scene.nodes["c"]
    scene.sessions["c"].idle_s = 16.0
    scene.tick()
    assert scene.sessions["c"].closed
    assert node.connection.backoff
    assert len(scene.said) == 1
    node.move_to(NodeState.LOST)
    scene.monitor.disconnect(node, "it broke")
    assert len(scene.said) == 1, "its loss was said"


@pytest.mark.promise(4, 12)
@pytest.mark.parametrize("role", [Role.LAUNCH, Role.ATTACH])
@pytest.mark.parametrize("again", [False, True], ids=["one connection", "again and again"])
def test_host_that_is_reached_again_and_does_not_follow_is_not_awaited_for_ever(
    scene: Scene, role: Role, again: bool
) -> None:
    """Its answers to pings count for a limited time, over however many connections they come."""
    scene.attempt.role = role
    scene.settled("a", "b")
    node = scene.nodes["c"]
    longest = ANSWER_TIMEOUT_S + limits.LAST_HOST_TIMEOUT_S
    scene.out_of_reach("c", seconds=longest - 10)
    node.connection.session = cast("HostSession", FakeSession(node.name))
    scene.tick()
    assert (node.is_finished, node.is_lost) == (False, False)
    if again:
        scene.monitor.disconnect(node, "it broke")
        node.connection.session = cast("HostSession", FakeSession(node.name))

    assert node.connection.backoff
    node.connection.backoff.since -= 20
    node.connection._last_heard -= 20
    scene.tick()
    assert node.is_lost if role is Role.LAUNCH else node.state is NodeState.UNVERIFIED
    assert NO_ANSWER in str(scene.events)


@pytest.mark.parametrize("out_of_touch", ["", "never joined", "no other in touch"])
def test_a_node_is_lost_that_is_out_of_touch_with_everyone(scene: Scene, out_of_touch: str) -> None:
    """After `lost_s` if it never joined, else once its controller lease has expired.

    However long only the controller cannot reach it: the others renew that.
    """
    scene.out_of_reach("c", seconds=16 if out_of_touch == "never joined" else 600 + 15 + 17)
    scene.nodes["c"].is_joined = out_of_touch != "never joined"
    if out_of_touch == "no other in touch":
        scene.out_of_reach("a", "b", seconds=20)
    scene.tick()
    assert scene.kinds()[:1] == [HostLost] * bool(out_of_touch)
    assert [event.node for event in scene.events[:1]] == ["c"] * bool(out_of_touch)
    assert (scene.stop.requested is not None) == bool(out_of_touch)


@pytest.mark.parametrize(
    ("ready", "seconds", "given_up"),
    [
        (Scene.kinds, LONG, False),
        (lambda s: s.settled("a", "b"), limits.LAST_HOST_TIMEOUT_S + 1, True),
        (lambda s: s.settled("a", "b"), limits.LAST_HOST_TIMEOUT_S - 9, False),
        (lambda s: s.out_of_reach("a", "b", seconds=30), limits.ATTACH_TIMEOUT_S - 9, False),
        (lambda s: s.out_of_reach("a", "b", seconds=30), limits.ATTACH_TIMEOUT_S + 9, True),
    ],
    ids=["others run", "others ended", "not yet", "none reachable", "none for long"],
)
def test_an_attached_controller_waits_for_a_limited_time(
    scene: Scene, ready: Callable[[Scene], object], seconds: float, given_up: bool
) -> None:
    """It stops nothing, whichever node it cannot reach."""
    scene.attempt.role = Role.ATTACH
    ready(scene)
    scene.out_of_reach("c", seconds=seconds)
    scene.tick()
    assert scene.nodes["c"].is_finished is given_up
    assert scene.kinds() == [EndUnverified] * given_up
    assert scene.stop.requested is None


@pytest.mark.parametrize(
    ("ended", "silent", "min_nodes", "expected"),
    [
        ("abc", "", 0, False),
        ("bc", "d", 0, False),  # the hub and a spare are too few for three
        ("c", "d", 0, True),
        ("ac", "d", 0, False),  # the hub has ended
        ("bc", "", 1, False),  # alone it relaunches nothing
        ("bc", "d", 1, True),
    ],
)
def test_hosts_out_of_reach_may_relaunch_where_they_are_enough(
    ended: str, silent: str, min_nodes: int, *, expected: bool
) -> None:
    """Then a launch must not: two attempts would be on at once."""
    order = SimpleNamespace(relaunches_left=1, detached=False, hub="a")
    shares = [SimpleNamespace(node=name, order=order) for name in "abc"]
    spares = [SimpleNamespace(node="d")]
    nodes = {name: SimpleNamespace(has_ended=name in ended) for name in "abc"}
    plan = SimpleNamespace(nodes=shares, spares=spares, min_nodes=min_nodes)
    attempt = SimpleNamespace(plan=plan, nodes=nodes, is_silent=lambda name: name in silent)
    assert PeerStatus(cast("Any", attempt)).hosts_may_decide is expected


def test_logs_that_wait_for_their_reader_are_not_given_up(scene: Scene) -> None:
    """Nothing was asked for meanwhile: when the console has room again, they have their time."""
    scene.nodes["a"].move_to(NodeState.ENDED)
    for is_full in (True, False):
        scene.console.is_full = is_full
        scene.nodes["a"].last_data -= LONG * is_full
        scene.tick()
    assert scene.nodes["a"].state is NodeState.ENDED


@pytest.mark.promise(4)
def test_logs_as_they_are_now_are_not_awaited_for_ever() -> None:
    """A run may be silent for long; a host that was asked for what is there may not."""
    scene = Scene(builders.plan(1))
    scene.attempt.role = Role.READ_ONLY
    node = scene.nodes["a"]
    node.last_data -= LONG
    scene.tick()
    assert node.state is NodeState.RUNNING
    node.tailer.once = True
    scene.tick()
    assert (node.state, scene.said) == (NodeState.UNVERIFIED, [f"a: {NO_ANSWER}"])
    gone = Scene(builders.plan(1))
    gone.attempt.role = Role.READ_ONLY
    gone.nodes["a"].tailer.once = True
    gone.out_of_reach("a", seconds=16)
    gone.tick()
    assert (gone.nodes["a"].state, gone.kinds()) == (NodeState.UNVERIFIED, [EndUnverified])
