"""Control socket of a supervisor: agents connect to it, and send commands as lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any, Callable, Dict, Set

from runner.host.process.event_loop import EventLoop
from runner.host.storage.run_owner import RunLock


class ControlSocket:
    """The listening Unix socket with its connections."""

    def __init__(
        self, run_lock: RunLock, loop: EventLoop, on_command: Callable[[Dict[str, Any]], None]
    ) -> None:
        """Take commands once `open` was called; `on_command` may raise for a malformed one."""
        self._run_lock, self._loop, self._on_command = run_lock, loop, on_command
        self._connections: Set[socket.socket] = set()

    def open(self) -> None:
        """Listen for agents."""
        path = self._run_lock.socket_path
        if os.path.exists(path):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        listener.listen(8)
        listener.setblocking(False)
        self._listener = listener
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def reopen_if_removed(self) -> None:
        """Listen again if the socket was removed, as with all of /tmp; if that fails, later."""
        if os.path.exists(self._run_lock.socket_path):
            return
        with contextlib.suppress(OSError):
            self._run_lock.make_folder()
            old_listener = self._listener
            self.open()
            self._loop.remove_reader(old_listener.fileno())
            old_listener.close()

    def close(self) -> None:
        """Close the socket and its connections."""
        for sock in (*self._connections, self._listener):
            self._loop.remove_reader(sock.fileno())
            sock.close()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
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
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._on_command(json.loads(line))
