"""Control socket: whose commands a supervisor hears."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.core.wire.paths import RunPaths
from runner.host.process.event_loop import EventLoop
from runner.host.storage import run_owner
from runner.host.storage.run_owner import RunSocket
from runner.host.supervisor.supervisor import ControlSocket

COMMAND = b'{"command": "stop"}\n'


class Heard:
    """A supervisor's control socket, and the commands that came through it."""

    def __init__(self, run: RunPaths) -> None:
        self.run = run
        self.commands: list[dict[str, Any]] = []
        self.loop = EventLoop()
        listener = RunSocket(run).take()
        assert listener is not None
        self.listener = listener
        self.socket = ControlSocket(listener, self.loop, self.commands.append)

    def say(self, line: bytes) -> bool:
        """Connect and send a line; return whether the connection stays."""
        client = RunSocket(self.run).connect()
        assert client is not None
        with client:
            client.send(line)
            self.work()
            try:
                stays = bool(client.recv(1))
            except BlockingIOError:
                stays = True
            except ConnectionResetError:
                stays = False
        self.work()
        return stays

    def work(self) -> None:
        """Take what has come: connections, then what they say."""
        for _ in range(3):
            self.loop.wait(0)


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Heard]:
    heard = Heard(RunPaths(str(tmp_path), "r1", "n1"))
    yield heard
    heard.listener.close()


@pytest.mark.parametrize(("uid", "is_heard"), [(os.getuid(), True), (4711, False)])
def test_only_the_user_is_heard(
    heard: Heard, monkeypatch: pytest.MonkeyPatch, uid: int, *, is_heard: bool
) -> None:
    """Anybody can connect to an abstract name; the kernel says who did."""
    connections = []

    def peer_uid(connection: object) -> int:
        connections.append(connection)
        return uid if len(connections) > 1 else os.getuid()  # the first is who connects

    monkeypatch.setattr(run_owner, "peer_uid", peer_uid)
    assert heard.say(COMMAND) == is_heard
    assert heard.commands == [{"command": "stop"}] * is_heard


def test_the_next_attempt_hears_who_came_between_two(heard: Heard) -> None:
    """The socket stays with the process; a connection waits in its backlog."""
    heard.socket.close()
    assert heard.say(COMMAND)
    later: list[dict[str, Any]] = []
    following = ControlSocket(heard.listener, heard.loop, later.append)
    heard.work()
    following.close()
    assert later == [{"command": "stop"}]
