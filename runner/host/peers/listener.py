"""TCP listener of a supervisor: accepts connections, and drops those that do not authenticate."""

from __future__ import annotations

import socket
import time
from typing import Any, Dict, Set

from runner.host.peers.connection import (
    SERVER,
    Identity,
    OnDisconnect,
    OnMessage,
    PeerConnection,
    PeerDisconnected,
)
from runner.host.process.event_loop import EventLoop

AUTH_TIMEOUT_S = 5.0
"""How long a connection may take to prove that it knows the token."""

MAX_UNAUTHENTICATED = 64
BACKLOG = 256


class Listener:
    """A listening socket with the connections that have not authenticated yet.

    The first message of a connection authenticates it: from then on it is the owner's, which gets
    its messages and its end.
    """

    def __init__(
        self,
        sock: socket.socket,
        identity: Identity,
        loop: EventLoop,
        on_message: OnMessage,
        on_disconnect: OnDisconnect,
        *,
        auth_timeout_s: float = AUTH_TIMEOUT_S,
        max_unauthenticated: int = MAX_UNAUTHENTICATED,
    ) -> None:
        self._socket, self._identity, self._loop = sock, identity, loop
        self._on_message, self._on_disconnect = on_message, on_disconnect
        self._auth_timeout_s, self._max_unauthenticated = auth_timeout_s, max_unauthenticated
        self._unauthenticated: Set[PeerConnection] = set()
        sock.setblocking(False)
        sock.listen(BACKLOG)
        loop.add_reader(sock.fileno(), self._accept)

    def tick(self) -> None:
        """Drop the connections that took too long to authenticate."""
        oldest = time.monotonic() - self._auth_timeout_s
        for peer in [peer for peer in self._unauthenticated if peer.connected_at < oldest]:
            self._drop(peer)

    def close(self) -> None:
        """Stop listening, and drop what has not authenticated."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for peer in [*self._unauthenticated]:
            self._drop(peer)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:  # it has gone again, or this process has no descriptor left
            return
        if len(self._unauthenticated) >= self._max_unauthenticated:
            connection.close()
            return
        peer = PeerConnection(connection, self._identity, SERVER)
        peer.watch(self._loop, self._receive, self._disconnect)
        self._unauthenticated.add(peer)

    def _receive(self, peer: PeerConnection, message: Dict[str, Any]) -> None:
        self._unauthenticated.discard(peer)
        self._on_message(peer, message)

    def _disconnect(self, peer: PeerConnection, error: PeerDisconnected) -> None:
        if peer in self._unauthenticated:
            self._drop(peer)
        else:
            self._on_disconnect(peer, error)

    def _drop(self, peer: PeerConnection) -> None:
        self._unauthenticated.discard(peer)
        peer.close()
