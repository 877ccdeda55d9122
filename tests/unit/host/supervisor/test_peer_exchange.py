"""The controller lease, and the socket by which a supervisor hears commands."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.core.wire.order import Hub, Order
from runner.core.wire.paths import RunPaths
from runner.core.wire.states import Reason, State
from runner.host.facts.ports import NO_PORTS
from runner.host.peers.state import LastHeard
from runner.host.process.event_loop import EventLoop
from runner.host.storage import run_owner
from runner.host.storage.run_folder import EventLog
from runner.host.storage.run_owner import RunSocket
from runner.host.supervisor.attempt import LAUNCH_GONE_S, ControllerLease, SupervisorArgs
from runner.host.supervisor.peer_exchange import ControlSocket, PeerExchange
from runner.host.supervisor.stop_ladder import StopLadder
from tests.unit.host.supervisor.test_stop_ladder import Journal


def order(disconnect_s: float, **changes: Any) -> Order:
    return Order("run", "b", 0, "/w", "/", disconnect_s=disconnect_s, **changes)


def exchange_of(order: Order, stop: Callable[[Reason], None] = lambda _: None) -> PeerExchange:
    """What a supervisor with that order has, before it stops."""
    return PeerExchange(
        SupervisorArgs(RunPaths("/w", "run", "b"), order, {}, NO_PORTS, b"token"),
        cast("EventLog", Journal()),
        cast("StopLadder", SimpleNamespace(is_stopping=False)),
        stop,
        lambda _: None,
    )


def test_a_controller_is_missing_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it was heard last; a run that is kept misses nobody."""
    lease = ControllerLease(order(10.0), cast("EventLog", Journal()))
    began = time.monotonic()
    now = began
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def has_expired() -> bool:
        return lease.has_expired

    now = began + 9
    assert not has_expired()
    now = began + 11
    assert has_expired()
    lease.renew_from_peer(LastHeard(began + 5, began))
    assert not has_expired()
    now = began + 20
    lease.renew()
    assert not has_expired()
    now = began + 31
    lease.confirm_detach(stopping=False)
    assert not has_expired()


@pytest.mark.parametrize(("state", "recorded"), [(State.STOPPING, 1), (State.SUCCEEDED, 0)])
def test_a_record_ends_with_its_end(state: State, recorded: int) -> None:
    """A detach of which another host tells after it is not recorded."""
    journal = Journal()
    journal.state = state
    lease = ControllerLease(order(10.0), cast("EventLog", journal))
    lease.confirm_detach(stopping=False)
    assert lease.detached
    assert len(journal.bodies) == recorded


@pytest.mark.parametrize("hub", ["b", "a"])
def test_the_hub_decides_about_a_detach(hub: str) -> None:
    """A member asks for it while it is in touch with the hub."""
    exchange = exchange_of(order(10.0, hub=Hub(hub, "127.0.0.1", 1, member_count=1)))
    is_hub = hub == "b"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        exchange.join(listener if is_hub else None, EventLoop())
        exchange.joined_hub = not is_hub
        exchange.detach()
        assert exchange.lease.detached is is_hub
        exchange.on_lease_renewed(exchange.lease.heard, detached=True)
        assert exchange.lease.detached


@pytest.mark.parametrize("disconnect_s", [0.0, 600.0])
def test_the_hosts_decide_once_the_launch_is_gone(
    monkeypatch: pytest.MonkeyPatch, disconnect_s: float
) -> None:
    """Whether or not the run would stop without a controller; an attach takes no launch's place."""
    lease = ControllerLease(order(disconnect_s), cast("EventLog", Journal()))
    began = time.monotonic()
    now = began
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lease.renew(by_launch=True)
    now = began + LAUNCH_GONE_S - 1
    lease.renew()
    assert (lease.heard_anywhere.launch, lease.hosts_decide) == (began, False)
    lease.renew_from_peer(LastHeard(now, began + 4))
    now = began + LAUNCH_GONE_S + 3
    assert (lease.heard_anywhere.launch, lease.hosts_decide) == (began + 4, False)
    now = began + LAUNCH_GONE_S + 5
    assert lease.hosts_decide
    assert not lease.has_expired


def test_a_controller_is_not_missed_right_after_a_pause_of_our_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it said meanwhile is read first, whoever has looked at the lease since."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stopped: list[str] = []
    exchange = exchange_of(order(10.0), lambda reason: stopped.append(reason.text))
    exchange.check_lease()
    now += 60
    assert exchange.lease.has_expired
    exchange.check_lease()
    assert stopped == []
    now += 1
    exchange.check_lease()
    assert stopped == ["no controller was attached for 10 s (disconnect_s)"]


def test_a_stall_is_seen_without_a_node_that_never_came() -> None:
    """Once the controller says that the run goes on without it."""
    hub = Hub("b", "127.0.0.1", 1, member_count=1, min_nodes=1)
    exchange = exchange_of(order(0.0, hub=hub))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        exchange.join(listener, EventLoop())
        assert exchange.tick(7.0) is None
        exchange.on_peer_departed("c", "its order was refused", time.monotonic(), 1)
        assert exchange.tick(7.0) == 7.0
        exchange.leave()


class Heard:
    """A run's socket, and the commands that came through it."""

    def __init__(self, workdir: Path) -> None:
        run_socket = RunSocket(RunPaths(str(workdir), "r1", "n1"))
        listener = run_socket.take()
        assert listener is not None
        self.listener = listener
        self.address = run_socket.address
        self.loop = EventLoop()
        self.commands: list[dict[str, Any]] = []

    def listen(self) -> ControlSocket:
        return ControlSocket(self.listener, self.loop, self.commands.append)

    def say(self, lines: bytes) -> None:
        """Connect, send lines, and leave; take what has come so far."""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(self.address)
            client.sendall(lines)
        for _ in range(3):  # connections, what they say, and their end
            self.loop.wait(0)


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Heard]:
    heard = Heard(tmp_path)
    yield heard
    heard.listener.close()


@pytest.mark.parametrize(("uid", "is_heard"), [(os.getuid(), True), (4711, False)])
def test_only_the_user_is_heard(
    heard: Heard, monkeypatch: pytest.MonkeyPatch, uid: int, *, is_heard: bool
) -> None:
    """Anybody can connect to an abstract name; the kernel says who did."""
    monkeypatch.setattr(run_owner, "peer_uid", lambda _: uid)
    heard.listen()
    heard.say(b'odd\n{"command": "stop"}\n')
    assert heard.commands == [{"command": "stop"}] * is_heard


def test_the_next_attempt_hears_who_came_between_two(heard: Heard) -> None:
    """The socket stays with the process; a connection waits in its backlog."""
    heard.listen().close()
    heard.say(b'{"command": "stop"}\n')
    heard.listen()
    heard.say(b"")
    assert heard.commands == [{"command": "stop"}]
