"""Who listens while the hosts of a cluster try to reach each other, in a child of the link."""

from __future__ import annotations

import os
import select
import socket
import time
from typing import Any, Callable, Dict, List

from runner.host.facts import ports
from runner.host.peers.connection import SERVER, PeerConnection, PeerDisconnected

SUBJECT = "check"

AUTH_TIMEOUT_S = 2.0
"""How long a stranger is listened to."""

MAX_CONNECTIONS = 512
"""So many connections at a time; others wait in the kernel."""

BACKLOG = 256
POLL_MS = 100


def serve(
    node: str,
    token: bytes,
    address: str,
    reserved_port: int,
    parent_pid: int,
    report: Callable[..., None],
) -> None:
    """Listen at a port of `address`, and at the one that is held; answer until the parent ends.

    Args:
        node: Our own node.
        token: What all hosts of this check know.
        address: The address that the other nodes use.
        reserved_port: The master's port, which this process's parent holds; 0 for none.
        parent_pid: The process that we answer for.
        report: Takes `port`, or `error` where there is none; and `ready` at the end.
    """
    listeners: List[socket.socket] = []
    try:
        listeners.append(_listen(_bind(address)))
        report(port=listeners[0].getsockname()[1])
        if reserved_port:
            listeners.append(_listen(ports.bind_shared(reserved_port)))
    except OSError as error:
        report(error=error.strerror or str(error))
    report(ready=True)
    server = EchoServer(listeners, node, token)
    while os.getppid() == parent_pid:
        server.poll_once()


class EchoServer:
    """Answers those who know the token; counts what they send."""

    def __init__(self, listeners: List[socket.socket], node: str, token: bytes) -> None:
        self._node, self._token = node, token
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._connections: Dict[int, PeerConnection] = {}
        self._byte_counts: Dict[int, int] = {}
        self._poll = select.poll()
        self._accepting = False
        self._set_accepting(accepting=True)

    def poll_once(self) -> None:
        """Wait for a moment, and answer what came."""
        for fd, _ in self._poll.poll(POLL_MS):
            if fd in self._listeners:
                self._accept(self._listeners[fd])
            elif fd in self._connections:
                self._receive(fd)
        now = time.monotonic()
        for fd, peer in list(self._connections.items()):
            peer.flush()
            if not peer.name and now > peer.connected_at + AUTH_TIMEOUT_S:
                self._drop(fd)

    def close(self) -> None:
        """Let go of all connections."""
        for fd in list(self._connections):
            self._drop(fd)
        for listener in self._listeners.values():
            listener.close()

    def _set_accepting(self, *, accepting: bool) -> None:
        if accepting == self._accepting:
            return
        self._accepting = accepting
        for fd in self._listeners:
            if accepting:
                self._poll.register(fd, select.POLLIN)
            else:
                self._poll.unregister(fd)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # it left again, or we have no descriptor left
            self._set_accepting(accepting=not self._connections)
            return
        peer = PeerConnection(connection, self._token, SUBJECT, self._node, SERVER)
        self._connections[peer.fileno()] = peer
        self._byte_counts[peer.fileno()] = 0
        self._poll.register(peer.fileno(), select.POLLIN)
        self._set_accepting(accepting=len(self._connections) < MAX_CONNECTIONS)

    def _receive(self, fd: int) -> None:
        peer = self._connections[fd]
        try:
            for message in peer.receive():
                self._reply(fd, peer, message)
        except PeerDisconnected:
            self._drop(fd)

    def _reply(self, fd: int, peer: PeerConnection, message: Dict[str, Any]) -> None:
        if message.get("type") == "hello":
            peer.send(type="hello")
        elif message.get("type") == "padding":
            self._byte_counts[fd] += len(str(message.get("padding", "")))
        elif message.get("type") == "count_request":
            peer.send(type="count", bytes=self._byte_counts[fd])

    def _drop(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._connections.pop(fd).close()
        self._byte_counts.pop(fd)
        self._set_accepting(accepting=True)


def _bind(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.bind((address, 0))
    except OSError:
        sock.close()
        raise
    return sock


def _listen(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    sock.listen(BACKLOG)
    return sock
