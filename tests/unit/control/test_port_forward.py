"""Port forward over the local transport: its limits, and its end."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator

import pytest

from runner.control.port_forward import MAX_CONNECTIONS, ForwardTarget, PortForward, listen
from runner.core.model.spec import Node
from runner.transport.local import LocalTransport
from tests.lab.waiting import wait_until

HERE = ForwardTarget("here", Node("here", "localhost", transport="local"))


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A program that listens, and whose connections the test accepts."""
    with socket.create_server(("127.0.0.1", 0), backlog=2 * MAX_CONNECTIONS) as server:
        server.settimeout(10)
        yield server


@contextlib.contextmanager
def forwarding(port: int, said: list[str]) -> Iterator[tuple[str, int]]:
    """Forward to a port; yield where. At the end there is no thread that was not there before."""
    before = threading.active_count()
    listening = listen(0)
    address: tuple[str, int] = listening.getsockname()
    forward = PortForward(LocalTransport(), HERE, [(listening, port)], said.append)
    thread = threading.Thread(target=forward.run)
    thread.start()
    try:
        yield address
    finally:
        forward.stop()
        thread.join(10)
        assert not thread.is_alive()
        wait_until(lambda: threading.active_count() == before, "the end of all threads")


def test_more_connections_than_are_carried_wait(server: socket.socket) -> None:
    """Until one of the others ends."""
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(forwarding(server.getsockname()[1], []))
        clients = [
            stack.enter_context(socket.create_connection(address))
            for _ in range(MAX_CONNECTIONS + 1)
        ]
        clients[-1].sendall(b"the last")
        served = [stack.enter_context(server.accept()[0]) for _ in range(MAX_CONNECTIONS)]
        server.settimeout(0.3)
        with pytest.raises(TimeoutError):
            server.accept()
        server.settimeout(10)
        clients[0].close()
        (ended,) = select.select(served, [], [], 10)[0]
        ended.close()
        last = stack.enter_context(server.accept()[0])
        assert last.recv(100) == b"the last"


def test_the_end_of_the_forward_ends_all(server: socket.socket) -> None:
    """Both halves of what is open, and the port."""
    with forwarding(server.getsockname()[1], []) as address:
        client = socket.create_connection(address, 10)
        served, _ = server.accept()
    assert client.recv(1) == b""
    assert served.recv(1) == b""
    client.close()
    served.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 10)


def test_a_client_that_vanishes_ends_both_halves(server: socket.socket) -> None:
    """Also in the middle of a big answer that nobody reads."""
    with forwarding(server.getsockname()[1], []) as address:
        client = socket.create_connection(address)
        served, _ = server.accept()
        served.settimeout(10)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()  # with a reset
        with pytest.raises(OSError, match="reset|pipe"):
            served.sendall(b"x" * (1 << 28))
        served.close()


def test_a_refusal_is_said_but_not_for_each_try_of_a_browser() -> None:
    """And the forward goes on."""
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with forwarding(port, said) as address:
        for _ in range(3):
            with socket.create_connection(address) as client:
                assert client.recv(1) == b""
    assert said == [f"here: nothing answers on its port {port} yet (Connection refused)"]
