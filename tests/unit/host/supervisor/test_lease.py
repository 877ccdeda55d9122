"""The controller lease, and the socket by which a supervisor hears commands."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from runner.core.wire.order import Hub, Order
from runner.core.wire.paths import RunPaths
from runner.core.wire.states import State
from runner.host.peers.fold import LONG_S, PeerState, Phase
from runner.host.peers.links import hear_commands
from runner.host.process.event_loop import EventLoop
from runner.host.storage import run_owner
from runner.host.storage.run_folder import EventLog
from runner.host.storage.run_owner import RunSocket
from runner.host.supervisor.attempt import LAUNCH_GONE_S, ControllerLease
from tests.unit.host.supervisor.test_stop_ladder import Journal


def lease_of(
    disconnect_s: float = 10.0, journal: Journal | None = None, **changes: Any
) -> ControllerLease:
    order = Order("run", "b", 0, "/w", "/", disconnect_s=disconnect_s, **changes)
    return ControllerLease(order, cast("EventLog", journal or Journal()))


def told(controller_age_s: float, launch_age_s: float, *, detached: bool = False) -> PeerState:
    state = PeerState("run", 0, "a", 0, 1, Phase.ACTIVE, controller_age_s, launch_age_s)
    return replace(state, detached=detached)


DETACHED = told(LONG_S, LONG_S, detached=True)


def test_a_controller_is_missing_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it was heard last; a run that is kept misses nobody.

    Not right after a pause of our own: what it said meanwhile is read first.
    """
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lease = lease_of()
    lease.expiry()

    def has_expired(seconds: int) -> bool:
        nonlocal now
        found = []
        for _ in range(seconds):
            now += 1
            found.append(lease.expiry())
        assert not any(found[:-1])
        return found[-1] is not None

    assert not has_expired(10)
    lease.take(told(5.0, 10.0), is_stopping=False)
    assert has_expired(6)
    lease.renew()
    assert has_expired(11)
    lease.renew()
    now += 60
    assert lease.expiry() is None, "a pause of our own"
    now += 1
    reason = lease.expiry()
    assert reason is not None
    assert reason.text == "no controller was attached for 10 s (disconnect_s)"
    lease.take(DETACHED, is_stopping=False)
    assert not has_expired(99)


@pytest.mark.parametrize(("state", "recorded"), [(State.STOPPING, 1), (State.SUCCEEDED, 0)])
def test_a_record_ends_with_its_end(state: State, recorded: int) -> None:
    """A detach of which another host tells after it is not recorded."""
    journal = Journal()
    journal.state = state
    lease = lease_of(journal=journal)
    lease.take(DETACHED, is_stopping=False)
    assert lease.detached
    assert len(journal.bodies) == recorded


@pytest.mark.parametrize("hub", ["b", "a"])
def test_a_member_detaches_with_its_hub_which_does_not_once_it_stops(hub: str) -> None:
    lease = lease_of(hub=Hub(hub, "127.0.0.1", 1))
    lease.take(DETACHED, is_stopping=True)
    assert lease.detached is (hub == "a")


@pytest.mark.parametrize("disconnect_s", [0.0, 600.0])
def test_the_hosts_decide_once_the_launch_is_gone(
    monkeypatch: pytest.MonkeyPatch, disconnect_s: float
) -> None:
    """Whether or not the run would stop without a controller; an attach takes no launch's place."""
    began = time.monotonic()
    now = began
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lease = lease_of(disconnect_s)
    lease.renew(by_launch=True)
    now = began + LAUNCH_GONE_S - 1
    lease.renew()
    assert (lease.heard_anywhere.launch, lease.hosts_decide) == (began, False)
    lease.take(told(0.0, now - began - 4), is_stopping=False)
    now = began + LAUNCH_GONE_S + 3
    assert (lease.heard_anywhere.launch, lease.hosts_decide) == (began + 4, False)
    now = began + LAUNCH_GONE_S + 5
    assert lease.hosts_decide


@pytest.mark.parametrize(("uid", "is_heard"), [(os.getuid(), True), (4711, False)])
def test_only_the_user_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, *, is_heard: bool
) -> None:
    """Anybody can connect to an abstract name; the kernel says who did."""
    run_socket = RunSocket(RunPaths(str(tmp_path), "r1", "n1"))
    listener = run_socket.take()
    assert listener is not None
    monkeypatch.setattr(run_owner, "peer_uid", lambda _: uid)
    loop = EventLoop()
    commands: list[dict[str, Any]] = []

    def note(command: dict[str, Any]) -> dict[str, Any]:
        commands.append(command)
        return {}

    agents = hear_commands(listener, loop, note)
    with listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(run_socket.address)
        client.sendall(b'odd\n{"command": "stop"}\n')
        for _ in range(2):  # the connection, and what it says
            loop.wait(0)
        agents.close()
    assert commands == [{"command": "stop"}] * is_heard
