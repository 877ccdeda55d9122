"""Control socket: whose commands a supervisor hears."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.core.wire.paths import RunPaths
from runner.host.process.event_loop import EventLoop
from runner.host.storage import run_owner
from runner.host.storage.run_owner import RunSocket
from runner.host.supervisor.peer_exchange import ControlSocket


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
