"""Releases that one agent serves and another one receives, over loopback."""

from __future__ import annotations

import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.core.protocol.frames import Frame
from runner.host.agent import between_hosts
from runner.host.peers import release_exchange
from runner.host.peers.connection import (
    CLIENT,
    SERVER,
    Identity,
    PeerConnection,
    PeerDisconnected,
)
from tests.unit.release_builders import Made, done, is_intact, push_handler, release, store, stream
from tests.unit.release_builders import write_into as overwrite

TOKEN = "a token"
MADE = release({"a": b"a" * 300_000, "b/c": b"", "b/d": b"d", "twin": b"d", "z": b"z" * 7})


class Agent:
    """The push requests of one agent, with a store of its own."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.replies: list[tuple[str, dict[str, Any]]] = []
        self.push = push_handler(workdir, lambda *reply: self.replies.append(reply[:2]))
        self.others = between_hosts.Handler(self.push.context)

    def ask(self, kind: str, payload: bytes = b"", **data: object) -> tuple[str, dict[str, Any]]:
        """Make a request; return the reply."""
        handler = self.others if kind == "serve_release" else self.push
        steps = getattr(handler, f"on_{kind}")(Frame(kind, {"id": 1, **data}, payload))
        for call in steps:
            if call is not None:
                call()
        deadline = time.monotonic() + 20
        while not self.replies and time.monotonic() < deadline:
            self.others.advance()
        return self.replies.pop(0)

    def take_manifest(self, made: Made) -> tuple[str, dict[str, Any]]:
        """Be told of a release."""
        return self.ask("manifest", zlib.compress(made.manifest.encode()), keep=3)

    def receive(self, listening: int, **changes: object) -> tuple[str, dict[str, Any]]:
        """Be told to get it from node n1."""
        holder = {
            "node": "n1",
            "address": "127.0.0.1",
            "port": listening,
            "token": TOKEN,
            **changes,
        }
        return self.ask("receive_release", node="n2", keep=3, holder=holder)


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Callable[[str], Agent]]:
    """Make agents, which end with the test."""
    made: list[Agent] = []

    def make(name: str) -> Agent:
        made.append(Agent(tmp_path / name))
        return made[-1]

    yield make
    for agent in made:
        agent.others.close()


@pytest.fixture
def port(agents: Callable[[str], Agent], tmp_path: Path) -> int:
    """Where node n1 serves the release."""
    store(tmp_path / "n1", MADE)
    kind, data = serve(agents("n1"))
    assert (kind, data["error"]) == ("listening", "")
    return int(data["port"])


def serve(agent: Agent) -> tuple[str, dict[str, Any]]:
    """Have node n1 serve the release."""
    return agent.ask("serve_release", node="n1", release=MADE.name, token=TOKEN, first=0, last=0)


@pytest.mark.parametrize("earlier", [{}, {"a": b"a" * 300_000}, {"b/d": b"d", "z": b"z" * 7}])
def test_what_is_missing_comes_from_the_holder(
    agents: Callable[[str], Agent], port: int, tmp_path: Path, earlier: dict[str, bytes]
) -> None:
    """All of it, or what no earlier release has, at the ends or in the middle."""
    if earlier:
        store(tmp_path / "n2", release(earlier))
    agent = agents("n2")
    assert agent.take_manifest(MADE)[0] == "missing"

    assert agent.receive(port) == ("stored", {"id": 1, "new": True})
    assert is_intact(str(agent.workdir), MADE.name)


@pytest.mark.parametrize(
    ("changes", "reason", "unreachable"),
    [
        ({"token": "another"}, "n1 refused: it closed the connection", False),
        ({"node": "n3"}, "n3 refused: it is another node, or has another release", False),
        ({"address": "127.0.0.9", "port": 9}, "cannot connect to n1 at 127.0.0.9 port 9", True),
        ({"address": "somewhere"}, "cannot connect to n1 at somewhere port", True),
    ],
)
def test_a_holder_that_cannot_serve_is_named(
    agents: Callable[[str], Agent],
    port: int,
    changes: dict[str, object],
    reason: str,
    unreachable: bool,
) -> None:
    """Nothing is kept of the attempt; the controller sends it all the same."""
    agent = agents("n2")
    agent.take_manifest(MADE)
    kind, data = agent.receive(port, **changes)

    assert kind == "missing"
    assert data["reason"].startswith(reason)
    assert data["unreachable"] == unreachable
    assert data["missing"] == [0, 1, 2, 4]
    writer = agent.push._writer
    assert writer is not None
    done(writer.write(stream(writer, MADE)))
    assert agent.ask("finish", keep=3)[0] == "stored"
    assert is_intact(str(agent.workdir), MADE.name)


def test_other_contents_are_not_taken(
    agents: Callable[[str], Agent], port: int, tmp_path: Path
) -> None:
    """The hash decides, whoever sends it."""
    overwrite(MADE.code(tmp_path / "n1") / "a", b"b" * 300_000)
    agent = agents("n2")
    agent.take_manifest(MADE)

    kind, data = agent.receive(port)
    assert (kind, data["reason"]) == ("missing", "a arrived with other content")
    assert not data["unreachable"]


def test_a_file_that_is_shorter_ends_the_transfer(
    agents: Callable[[str], Agent], port: int, tmp_path: Path
) -> None:
    """Nobody waits for the rest."""
    overwrite(MADE.code(tmp_path / "n1") / "a", b"short")
    agent = agents("n2")
    agent.take_manifest(MADE)

    kind, data = agent.receive(port)
    assert (kind, data["reason"]) == ("missing", "n1 ended the transfer")


def test_no_release_no_service(agents: Callable[[str], Agent]) -> None:
    """It may have been removed meanwhile."""
    with pytest.raises(ValueError, match="the release was removed"):
        serve(agents("n1"))


def test_the_service_ends_when_it_is_told(agents: Callable[[str], Agent], port: int) -> None:
    """As it does with its agent."""
    agent = agents("n1")
    assert serve(agent)[0] == "listening"
    child = agent.others.children["server"]
    agent.others.on_stop_serving(Frame("stop_serving", {"id": 2}))

    assert not agent.others.children
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    assert port


def test_strangers_and_idle_peers_do_not_pile_up(agents: Callable[[str], Agent], port: int) -> None:
    """A host of the push that asks for nothing is dropped; others are served meanwhile."""
    identity = Identity("n3", f"release {MADE.name}", TOKEN.encode())
    idle = []
    for _ in range(3 * release_exchange.MAX_PEERS):
        peer = PeerConnection(socket.create_connection(("127.0.0.1", port)), identity, CLIENT)
        peer.send(type="hello")
        idle.append(peer)
    deadline = time.monotonic() + 10
    dropped = 0
    while dropped < 2 * release_exchange.MAX_PEERS and time.monotonic() < deadline:
        dropped = sum(is_over(peer) for peer in idle)
    assert dropped == 2 * release_exchange.MAX_PEERS
    for peer in idle:
        peer.close()
    agent = agents("n2")
    agent.take_manifest(MADE)
    assert agent.receive(port)[0] == "stored"


def is_over(peer: PeerConnection) -> bool:
    """Whether the other side has ended the connection."""
    try:
        peer.receive()
    except PeerDisconnected:
        return True
    return False


@pytest.mark.parametrize("message", [b"[]", b"7", b'"x"', b"null"])
def test_a_peer_that_sends_no_object_costs_itself_alone(
    agents: Callable[[str], Agent], port: int, message: bytes
) -> None:
    """The service goes on for the others."""
    identity = Identity("n3", f"release {MADE.name}", TOKEN.encode())
    peer = PeerConnection(socket.create_connection(("127.0.0.1", port)), identity, CLIENT)
    peer._pending.append(message)
    deadline = time.monotonic() + 10
    while not is_over(peer) and time.monotonic() < deadline:
        pass
    assert time.monotonic() < deadline
    peer.close()
    agent = agents("n2")
    agent.take_manifest(MADE)
    assert agent.receive(port)[0] == "stored"


@pytest.mark.parametrize("message", [b"[]", b'{"type": "offer", "bytes": "x"}'])
def test_a_holder_that_lies_costs_its_receiver_nothing(
    agents: Callable[[str], Agent], message: bytes
) -> None:
    """The controller is told what is missing, as if there was no holder."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def lie() -> None:
            connection = listener.accept()[0]
            identity = Identity("n1", f"release {MADE.name}", TOKEN.encode())
            peer = PeerConnection(connection, identity, SERVER)
            peer._pending.append(message)
            for _ in range(50):
                if is_over(peer):
                    break
                time.sleep(0.05)
            peer.close()

        liar = threading.Thread(target=lie, daemon=True)
        liar.start()
        agent = agents("n2")
        agent.take_manifest(MADE)
        kind, data = agent.receive(listener.getsockname()[1])
        liar.join(10)
    assert (kind, data["missing"]) == ("missing", [0, 1, 2, 4])
    assert data["reason"].startswith("n1 refused: ")


@pytest.mark.parametrize("sent", [0, 10])
def test_a_holder_that_stalls_is_left_but_not_for_our_own_slow_disk(
    monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    """Only the time counts in which we wait for it."""
    monkeypatch.setattr(release_exchange, "STALL_TIMEOUT_S", 0.2)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        theirs.sendall(b"x" * sent)
        received: list[bytes] = []
        chunks = map(slowly(received), release_exchange._receive_bytes(ours, "n1", 20))
        with pytest.raises(OSError, match=f"n1 sent {sent} of 20 bytes in 0 s"):
            list(chunks)
    assert b"".join(received) == b"x" * sent


def slowly(received: list[bytes]) -> Callable[[bytes], None]:
    """What a slow disk does with each chunk."""

    def write(data: bytes) -> None:
        received.append(data)
        time.sleep(0.3 if data else 0)

    return write
