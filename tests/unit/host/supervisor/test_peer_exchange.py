"""The controller lease: an attempt with it, without it, and detached."""

from __future__ import annotations

import time
from typing import cast

import pytest

from runner.core.model.plan import Hub, Order
from runner.core.protocol.events import Detached, EventBody
from runner.core.protocol.paths import RunPaths
from runner.host.facts.ports import NO_PORTS
from runner.host.peers.messages import LastHeard
from runner.host.storage.run_folder import EventLog
from runner.host.supervisor.attempt import SupervisorArgs
from runner.host.supervisor.peer_exchange import ControllerLease, PeerExchange, PeerGroup
from runner.host.supervisor.stop_ladder import StopLadder


class Paper:
    """A journal that nobody reads later."""

    def __init__(self) -> None:
        self.events: list[EventBody] = []

    def append(self, body: EventBody) -> None:
        """Write it down."""
        self.events.append(body)


class InTouch:
    """A member that reaches its hub."""

    def __init__(self) -> None:
        self.asked = 0

    def forward_detach(self) -> bool:
        """Ask the hub."""
        self.asked += 1
        return True


class Scene:
    """The supervisor of one node; the hub is with a."""

    def __init__(self, node: str = "b", *, disconnect_s: float = 600.0, hub: bool = True) -> None:
        self.order = Order(
            "run",
            node,
            0,
            "/w",
            (),
            {},
            "/",
            (),
            hub=Hub("a", "10.0.0.1", 29500, 1, 15.0) if hub else None,
            disconnect_s=disconnect_s,
        )
        self.paper = Paper()
        self.attendance = ControllerLease(self.order, cast("EventLog", self.paper))

    @property
    def state(self) -> tuple[bool, bool, int]:
        """Whether nobody is needed, whether the hosts agree in that, how often it is on record."""
        assert all(isinstance(event, Detached) for event in self.paper.events)
        return self.attendance.detached, self.attendance.detach_agreed, len(self.paper.events)

    def missing(self) -> str:
        """Why it is to end."""
        return self.attendance.expiry_reason


NEEDED, OURS, AGREED = (False, False, 0), (True, False, 1), (True, True, 1)


def test_in_touch_with_the_hub_its_word_counts() -> None:
    """A controller's is passed on; the hub's holds also for who stops already."""
    scene, circle = Scene(), InTouch()
    scene.attendance.request_detach(cast("PeerGroup", circle), joined_hub=True, stopping=False)
    assert (scene.state, circle.asked) == (NEEDED, 1)
    scene.attendance.request_detach(cast("PeerGroup", circle), joined_hub=True, stopping=True)
    assert (scene.state, circle.asked) == (NEEDED, 1)
    scene.attendance.confirm_detach(stopping=True)
    scene.attendance.confirm_detach(stopping=True)
    assert scene.state == AGREED


@pytest.mark.parametrize(
    ("node", "hub", "met", "state"),
    [
        ("a", True, False, AGREED),
        ("b", False, False, AGREED),
        ("b", True, True, AGREED),
        ("b", True, False, OURS),
    ],
    ids=["the hub", "alone", "its hub is lost", "never met it"],
)
def test_without_a_hub_to_ask(
    node: str, hub: bool, met: bool, state: tuple[bool, bool, int]
) -> None:
    """Each keeps what is its own; who never met the hub has no part in what follows."""
    scene = Scene(node, hub=hub)
    scene.attendance.request_detach(None, joined_hub=met, stopping=True)
    assert scene.state == NEEDED
    scene.attendance.request_detach(None, joined_hub=met, stopping=False)
    assert scene.state == state
    if state is OURS:
        scene.attendance.confirm_detach(stopping=True)
        assert scene.state == AGREED


def test_a_controller_is_missing_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it was heard last; a run that is kept misses nobody."""
    scene, began = Scene(disconnect_s=10.0), time.monotonic()
    now = began
    monkeypatch.setattr(time, "monotonic", lambda: now)
    now = began + 9
    assert scene.missing() == ""
    now = began + 11
    left_s = scene.attendance.unattended_left_s
    assert left_s is not None
    assert round(left_s) == -1
    assert scene.missing() == "no controller was attached for 10 s (disconnect_s)"
    scene.attendance.renew_from_peer(LastHeard(began + 5, began))
    assert scene.missing() == ""
    now = began + 20
    scene.attendance.renew()
    assert scene.missing() == ""
    now = began + 31
    scene.attendance.confirm_detach(stopping=False)
    assert scene.missing() == ""
    assert scene.attendance.unattended_left_s is None


@pytest.mark.parametrize("disconnect_s", [0.0, 600.0])
def test_the_hosts_decide_once_the_launch_is_gone(
    monkeypatch: pytest.MonkeyPatch, disconnect_s: float
) -> None:
    """Whether or not the run would stop without a controller; an attach takes no launch's place."""
    lease, began = Scene(disconnect_s=disconnect_s).attendance, time.monotonic()
    now = began
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lease.renew(by_launch=True)
    now = began + 9
    lease.renew()
    assert (lease.launch_heard_at, lease.hosts_decide) == (began, False)
    lease.renew_from_peer(LastHeard(now, began + 4))
    now = began + 13
    assert (lease.launch_heard_at, lease.hosts_decide) == (began + 4, False)
    now = began + 15
    assert lease.hosts_decide
    assert lease.expiry_reason == ""


def test_a_controller_is_not_missed_right_after_a_pause_of_our_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it said meanwhile is read first, whoever has looked at the lease since."""
    scene, now = Scene(disconnect_s=10.0), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stopped: list[str] = []
    args = SupervisorArgs(RunPaths("/w", "run", "b"), scene.order, {}, NO_PORTS, b"")
    exchange = PeerExchange(
        args,
        cast("EventLog", scene.paper),
        cast("StopLadder", None),
        lambda reason, _: stopped.append(reason),
        lambda _: None,
    )
    exchange.check_lease()
    now += 60
    assert exchange.lease.expiry_reason
    exchange.check_lease()
    assert stopped == []
    now += 1
    exchange.check_lease()
    assert stopped == ["no controller was attached for 10 s (disconnect_s)"]
