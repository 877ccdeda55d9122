"""Who counts as lost, and who is waited for: by what the others know of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.control.attempt import failure_detector as vigils
from runner.control.attempt.event_log import EventLog
from runner.control.attempt.failure_detector import FailureDetector
from runner.control.attempt.node import NodeState
from runner.control.attempt.observer import RunObserver
from runner.control.attempt.reconnect import Backoff, Reconnector
from runner.control.attempt.stop import StopSequence
from runner.core.model.spec import Node, Spec, Task
from runner.core.protocol.events import EndUnverified, Event, HostLost

LONG = 100_000.0


class Wire:
    """A wire that holds."""

    def __init__(self) -> None:
        self.closed, self.handshake_done, self.idle_s = False, True, 0.0
        self.last_heard = time.monotonic()

    def request(self, *_: Any) -> int:
        """Take it."""
        return 1

    def close(self) -> None:
        """End it."""
        self.closed = True


class Scene:
    """Three nodes of one attempt, all in touch with us and with each other."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.said: list[str] = []
        spec = Spec("r", "lab", tuple(Node(name, name) for name in "abc"), Task("t", "script", "t"))
        self.spec = replace(spec, lost_s=15.0, disconnect_s=600.0)
        self.nodes = {node.name: self.node(node) for node in self.spec.nodes}
        tell = RunObserver(
            record=self.events.append,
            log=lambda *_: None,
            message=self.said.append,
            phase=lambda *_, **__: None,
            node_status=lambda *_: None,
            console_full=lambda: False,
            mute=lambda: None,
        )
        chronicle = EventLog("r", 0, tell.record)
        self.stop = StopSequence(self.spec, self.nodes, tell, chronicle)
        idle = cast("Reconnector", SimpleNamespace(reconnect_if_due=lambda *_: None))
        self.vigil = FailureDetector(self.spec, self.nodes, idle, self.stop, chronicle, tell)

    def node(self, node: Node) -> NodeState:
        """One that runs."""
        share: Any = SimpleNamespace(node=node.name, ranks=(0,), order=None)
        follower: Any = SimpleNamespace(done=False, resume_held_back=lambda _: None)
        watched = NodeState(share, node, follower, cast("Any", Wire()))
        watched.supervisor_started = watched.hub_joined = True
        return watched

    def out_of_reach(self, *names: str, seconds: float) -> None:
        """We have not heard of some for so long, and tried."""
        for name in names:
            node = self.nodes[name]
            node.session, node.last_heard = None, time.monotonic() - seconds
            node.backoff = Backoff("no route", node.last_heard, tries=9)

    def settled(self, *names: str) -> None:
        """All of some is here."""
        for name in names:
            self.nodes[name].ended = self.nodes[name].finished = True

    def kinds(self) -> list[type]:
        """What was noted."""
        return [type(event.body) for event in self.events]


@pytest.fixture
def scene() -> Scene:
    """A new one."""
    return Scene()


def test_whom_the_others_watch_over_is_not_given_up(scene: Scene) -> None:
    """However long only we cannot reach it: its supervisor hears of us from them."""
    scene.out_of_reach("c", seconds=LONG)
    scene.vigil.tick()
    assert scene.stop.requested is None
    assert scene.kinds() == []


@pytest.mark.parametrize("alone", ["never joined", "nobody is in touch"])
def test_who_cannot_be_heard_of_is_lost(scene: Scene, alone: str) -> None:
    """After `lost_s` where only we could tell, or when its supervisor must have given up."""
    scene.out_of_reach("c", seconds=16 if alone == "never joined" else 600 + 15 + 17)
    if alone == "never joined":
        scene.nodes["c"].hub_joined = False
    else:
        scene.out_of_reach("a", "b", seconds=20)
    scene.vigil.tick()
    assert scene.kinds()[0] is HostLost
    assert scene.events[0].node == "c"
    assert scene.stop.requested is not None


@pytest.mark.parametrize(
    ("ready", "seconds", "given_up"),
    [
        (Scene.kinds, LONG, False),
        (lambda s: s.settled("a", "b"), vigils.LAST_HOST_TIMEOUT_S + 1, True),
        (lambda s: s.settled("a", "b"), vigils.LAST_HOST_TIMEOUT_S - 9, False),
        (lambda s: s.out_of_reach("a", "b", seconds=30), vigils.ATTACH_TIMEOUT_S - 9, False),
        (lambda s: s.out_of_reach("a", "b", seconds=30), vigils.ATTACH_TIMEOUT_S + 9, True),
    ],
    ids=["others run", "others ended", "not so long", "nobody", "nobody for long"],
)
def test_who_joined_waits_and_not_for_ever(
    scene: Scene, ready: Callable[[Scene], object], seconds: float, given_up: bool
) -> None:
    """And stops nothing, whomever it cannot reach."""
    scene.vigil.owns_run = False
    ready(scene)
    scene.out_of_reach("c", seconds=seconds)
    scene.vigil.tick()
    assert scene.nodes["c"].finished is given_up
    assert scene.kinds() == [EndUnverified] * given_up
    assert scene.stop.requested is None


def test_a_host_that_was_never_reached_is_awaited_with_the_others(scene: Scene) -> None:
    """A run that ended yesterday, and a host that is off today."""
    scene.vigil.owns_run = False
    scene.nodes["c"].supervisor_started = False
    scene.out_of_reach("c", seconds=16)
    scene.vigil.tick()
    assert scene.said == []
    scene.settled("a", "b")
    scene.vigil.tick()
    assert scene.nodes["c"].finished
    assert scene.said == ["c: it could not be reached: no route"]
