"""The port of a run's store: kept for it on this very machine, and for nobody else."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator

import pytest

from runner.core.wire.facts import FactsRequest
from runner.host import network_probe
from runner.host.facts import ports
from runner.host.process import bounded_child, procfs
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.promise(3)]


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def held(free_port: int) -> Iterator[socket.socket]:
    reserved, error = ports.reserve(free_port, free_port)
    assert error == ""
    assert reserved is not None
    with reserved:
        yield reserved


def bind(port: int, address: str = "127.0.0.1", *, shared: bool) -> socket.socket:
    """Return a socket bound there, with SO_REUSEADDR if `shared`."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    bound = socket.socket(family)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(shared))
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound


def test_two_runs_never_reserve_the_same_port(held: socket.socket) -> None:
    """Both would share it with a store, but not with each other."""
    port = held.getsockname()[1]

    again, error = ports.reserve(port, port)

    assert (again, error) == (
        None,
        f"port {port} is reserved by another run, or the near end of a connection",
    )


def test_the_connections_of_an_earlier_run_do_not_keep_its_port(free_port: int) -> None:
    """TIME_WAIT lasts a minute; nobody should have to wait for it."""
    with socket.create_server(("127.0.0.1", free_port)) as server:
        client = socket.create_connection(("127.0.0.1", free_port))
        server.accept()[0].close()  # the server's side closes first: TIME_WAIT is ours
        client.close()
    with pytest.raises(OSError, match="in use"):
        bind(free_port, "0.0.0.0", shared=False)

    reserved, error = ports.reserve(free_port, free_port)

    assert (reserved is not None, error) == (True, "")
    if reserved:
        reserved.close()


def test_later_attempts_have_ports_as_far_as_the_range_goes(held: socket.socket) -> None:
    """They are bound, too: nobody else has them meanwhile."""
    port = held.getsockname()[1]
    reserved, _ = ports.reserve_ports(FactsRequest("n1", spare_ports=2))
    with contextlib.closing(reserved):
        assert len({port, *reserved.numbers["spare_ports"]}) == 3
    taken = FactsRequest("n1", port_first=port, port_last=port, spare_ports=2)
    assert ports.reserve_ports(taken)[0].sockets == []


@pytest.mark.parametrize("address", ["127.0.0.1", "::"])
def test_who_listens_on_the_port_is_named(free_port: int, address: str) -> None:
    """At whatever address; with its pid and command."""
    with bind(free_port, address, shared=True) as other:
        other.listen()
        reserved, error = ports.reserve(free_port, free_port)
    assert reserved is None
    shown = f"{procfs.process_command(os.getpid())} (pid {os.getpid()})"
    assert error == f"port {free_port} is taken by {shown}"


def test_children_do_not_hold_the_port(held: socket.socket) -> None:
    """A probe that hangs for ever must not keep it."""
    port = held.getsockname()[1]
    child = bounded_child.BoundedChild(lambda: time.sleep(900), 900)
    try:
        held.close()
        found: list[socket.socket] = []

        def is_free() -> bool:
            again, _ = ports.reserve(port, port)
            found.extend(filter(None, [again]))
            return again is not None

        wait_until(is_free, "the child to let go of the port")
        found[0].close()
    finally:
        child.kill()


@pytest.mark.parametrize("address", ["0.0.0.0", "::1"])
def test_a_reserved_port_is_kept_for_the_store(address: str, held: socket.socket) -> None:
    """Who does not share is refused; who does, as torch's store, can bind and listen."""
    port = held.getsockname()[1]
    with pytest.raises(OSError, match="in use"):
        bind(port, address, shared=False)
    with bind(port, address, shared=True) as listener:
        listener.listen()


def test_the_next_attempt_gives_the_port_of_the_last_one_back(held: socket.socket) -> None:
    """Also where it has no other: an earlier program has ended, and its port is free again."""
    port = held.getsockname()[1]
    following = ports.ReservedPorts(held).next_store(port)
    assert following.store is not None
    with following.store:
        assert (following.store.getsockname()[1], held.fileno()) == (port, -1)


def test_the_network_is_tried_at_the_ports_that_runs_use(held: socket.socket) -> None:
    """Reserved or not; at another one where all of them are in use."""
    port = held.getsockname()[1]
    with network_probe.listen("127.0.0.1", [port]) as first:
        assert first.getsockname()[1] == port
        with network_probe.listen("127.0.0.1", [port]) as second:
            assert second.getsockname()[1] not in (0, port)
