"""Control socket of a supervisor: agents connect to it, and send commands as lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any, Callable, Dict, Optional, Set

from runner.host.process.event_loop import EventLoop
from runner.host.storage.run_owner import peer_uid


class ControlSocket:
    """The run's socket with its connections, those of this user only."""

    def __init__(
        self,
        listener: socket.socket,
        loop: EventLoop,
        on_command: Callable[[Dict[str, Any]], Optional[Dict[str, Any]]],
    ) -> None:
        """Take commands once `open` was called.

        `on_command` returns what to answer, if anything, and may raise for a malformed one.
        """
        self._listener = listener
        self._loop = loop
        self._on_command = on_command
        self._connections: Set[socket.socket] = set()

    def open(self) -> None:
        """Hear agents."""
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Close the connections; the socket itself is the run's, and may have a next attempt."""
        self._loop.remove_reader(self._listener.fileno())
        for connection in self._connections:
            self._loop.remove_reader(connection.fileno())
            connection.close()

    def _accept(self) -> None:
        connection = self._loop.accept(self._listener)
        if connection is None:
            return
        if peer_uid(connection) != os.getuid():
            connection.close()
            return
        connection.setblocking(False)
        self._connections.add(connection)
        read_buffer = bytearray()
        self._loop.add_reader(connection.fileno(), lambda: self._receive(connection, read_buffer))

    def _receive(self, connection: socket.socket, read_buffer: bytearray) -> None:
        try:
            chunk = connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._loop.remove_reader(connection.fileno())
            self._connections.discard(connection)
            connection.close()
            return
        read_buffer += chunk
        *lines, read_buffer[:] = read_buffer.split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
                if answer := self._on_command(json.loads(line)):
                    connection.send(json.dumps(answer).encode() + b"\n")
