"""Agents of a job's nodes, in one process on its login node."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from runner.core.protocol.frames import Frame
from runner.host.agent import channels
from runner.host.agent.channels import Handler
from runner.host.agent.server import AgentContext
from runner.host.process.importer import HostCode
from tests.lab.waiting import PATIENCE, wait_until


class Context:
    """The conversation with a controller."""

    code = HostCode({})
    takes = True

    def __init__(self) -> None:
        self.replies: list[tuple[str, int, bytes]] = []
        self.loaded: list[str] = []

    def reply(self, kind: str, data: dict[str, Any], payload: bytes) -> None:
        """Note a reply."""
        self.replies.append((kind, data["channel"], payload))

    def can_send(self) -> bool:
        """Whether the controller takes what is sent."""
        return self.takes

    def get_handler(self, kind: str) -> None:
        """Load a module."""
        self.loaded.append(kind)


class World:
    """A handler with the other ends of its channels."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.agents: list[socket.socket] = []
        pairs: list[socket.socket] = []

        def pair() -> tuple[socket.socket, socket.socket]:
            near, far = made()
            self.agents.append(far)
            pairs.append(near)
            return near, far.dup()

        made = socket.socketpair
        monkeypatch.setattr(socket, "socketpair", pair)
        monkeypatch.setattr(channels, "_serve", lambda far, _: far.close())
        self.context = Context()
        self.handler = Handler(cast("AgentContext", self.context))

    def ask(self, kind: str, channel: int, payload: bytes = b"") -> None:
        """Have a request come."""
        getattr(self.handler, f"on_{kind}")(Frame(kind, {"id": 1, "channel": channel}, payload))

    def close(self) -> None:
        """End all."""
        self.handler.close()
        for agent in self.agents:
            agent.close()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A handler without channels."""
    made = World(monkeypatch)
    yield made
    made.close()


def test_what_an_agent_does_not_take_is_kept(world: World) -> None:
    """Others are served meanwhile; no byte is lost."""
    world.ask("open_channel", 1)
    data = bytes(range(256)) * 8192
    world.ask("to_channel", 1, data)
    assert world.handler.busy
    received = b""
    while len(received) < len(data):
        received += world.agents[0].recv(1 << 20)
        world.handler.advance()
    assert received == data
    assert not world.handler.busy


def test_an_agent_that_ends_is_reported_after_its_last_bytes(world: World) -> None:
    """By no bytes; what comes for it then is dropped."""
    world.ask("open_channel", 1)
    world.agents[0].sendall(b"bye")
    world.agents[0].shutdown(socket.SHUT_RDWR)
    for _ in range(3):
        world.handler.advance()
    assert world.context.replies == [("from_channel", 1, b"bye"), ("from_channel", 1, b"")]
    world.ask("to_channel", 1, b"?")
    world.ask("close_channel", 1)
    assert (world.handler.pipes, world.handler.busy) == ([], False)


def test_an_agent_of_a_channel_says_hello() -> None:
    """It is a whole agent, and ends with its channel: no thread or descriptor is left."""
    context: Any = Context()
    handler = Handler(context)
    threads = {*threading.enumerate()}
    descriptors = len([*Path("/proc/self/fd").iterdir()])
    handler.on_open_channel(Frame("open_channel", {"id": 1, "channel": 1}))

    def has_spoken() -> bool:
        handler.advance()
        return bool(context.replies)

    wait_until(has_spoken, "the agent's hello")
    assert b"hello" in b"".join(data for _, _, data in context.replies)
    began = {*threading.enumerate()} - threads
    assert len(began) == 2
    handler.close()
    for thread in began:
        thread.join(10 * PATIENCE)
    assert not any(thread.is_alive() for thread in began)
    assert len([*Path("/proc/self/fd").iterdir()]) <= descriptors
