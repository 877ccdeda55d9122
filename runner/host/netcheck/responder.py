"""Responder of the network check: answers the hosts that test their connections to this one."""

from __future__ import annotations

import os
import socket
from typing import Any, Callable, Dict, List

from runner.host.facts import ports
from runner.host.peers.connection import BACKLOG, Identity, Listener, PeerConnection
from runner.host.process.event_loop import EventLoop

SUBJECT = "check"

AUTH_TIMEOUT_S = 2.0
"""How long a connection may take to authenticate."""

MAX_UNAUTHENTICATED = 512
"""Far more than hosts that connect at the same moment: a refusal would look like a fault."""

POLL_S = 0.1


def serve(
    node: str,
    token: bytes,
    address: str,
    reserved_port: int,
    parent_pid: int,
    report: Callable[..., None],
) -> None:
    """Listen at a port of `address`, and at the reserved one; answer until the parent ends.

    The reserved port is the master's, 0 for none. `report` takes `port`, or `error` if there is
    none; then `ready`.
    """
    sockets: List[socket.socket] = []
    try:
        sockets.append(_bind(address))
        report(port=sockets[0].getsockname()[1])
        if reserved_port:
            reserved = ports.bind_wildcard(reserved_port)
            reserved.listen(BACKLOG)
            sockets.append(reserved)
    except OSError as error:
        report(error=error.strerror or str(error))
    server = EchoServer(sockets, node, token)
    report(ready=True)
    while os.getppid() == parent_pid:
        server.poll_once()


class EchoServer:
    """Answers the hosts that know the token, and counts the bytes they send."""

    def __init__(self, sockets: List[socket.socket], node: str, token: bytes) -> None:
        self._byte_counts: Dict[PeerConnection, int] = {}
        self._loop = EventLoop()
        self._listeners = [
            Listener(
                *(sock, Identity(node, SUBJECT, token), self._loop),
                *(self._reply, lambda peer, _: self._drop(peer)),
                auth_timeout_s=AUTH_TIMEOUT_S,
                max_unauthenticated=MAX_UNAUTHENTICATED,
            )
            for sock in sockets
        ]

    def poll_once(self) -> None:
        """Wait for a moment, and answer what has arrived."""
        self._loop.wait(POLL_S)
        for listener in self._listeners:
            listener.tick()
        for peer in self._byte_counts:
            peer.flush()

    def close(self) -> None:
        """Close all connections."""
        for listener in self._listeners:
            listener.close()
        for peer in [*self._byte_counts]:
            self._drop(peer)

    def _reply(self, peer: PeerConnection, message: Dict[str, Any]) -> None:
        self._byte_counts.setdefault(peer, 0)
        if message.get("type") == "hello":
            peer.send(type="hello")
        elif message.get("type") == "padding":
            self._byte_counts[peer] += len(str(message.get("padding", "")))
        elif message.get("type") == "count_request":
            peer.send(type="count", bytes=self._byte_counts[peer])

    def _drop(self, peer: PeerConnection) -> None:
        self._byte_counts.pop(peer, None)
        peer.close()


def _bind(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.bind((address, 0))
    except OSError:
        sock.close()
        raise
    return sock
