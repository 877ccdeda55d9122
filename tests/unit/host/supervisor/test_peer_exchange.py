"""The controller lease: an attempt with it, without it, and detached."""

from __future__ import annotations

import time
from typing import cast

import pytest

from runner.core.model.plan import Hub, Order
from runner.core.protocol.events import Detached, EventBody
from runner.host.storage.run_folder import EventLog
from runner.host.supervisor.peer_exchange import ControllerLease, PeerGroup


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
        order = Order(
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
        self.attendance = ControllerLease(order, cast("EventLog", self.paper))

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
    scene.attendance.renew_from_peer(began + 5)
    assert scene.missing() == ""
    now = began + 20
    scene.attendance.renew()
    assert scene.missing() == ""
    now = began + 31
    scene.attendance.confirm_detach(stopping=False)
    assert scene.missing() == ""
    assert scene.attendance.unattended_left_s is None
