"""The connections by which supervisors find who of them decides: to the first voter that lives.

Every supervisor listens from its start, so that one which is still ending its part is told from
one that is gone: the latter refuses, or is silent.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from runner.core.relaunch.handover import Voter
from runner.host.peers.connection import CLIENT, SERVER, PeerConnection, PeerDisconnected
from runner.host.peers.group import AUTH_TIMEOUT_S, GOODBYE_TIMEOUT_S, AddReader

CONNECT_TIMEOUT_S = 5.0
"""How long a voter may take to take a connection."""

MAX_UNAUTHENTICATED = 64
MAX_PLAN_BYTES = 64 << 20
"""A message of a voter may be so long: it holds a plan."""

OnMessage = Callable[[PeerConnection, Dict[str, Any]], None]


class PeerContext(NamedTuple):
    """What a connection needs: who speaks, of what, with which proof, and who looks for news."""

    node: str
    subject: str
    token: bytes
    add_reader: AddReader
    remove_reader: Callable[[int], None]

    def add_connection(
        self, connection: socket.socket, role: bytes, on_readable: Callable[[PeerConnection], None]
    ) -> PeerConnection:
        """Return the other end of a connection."""
        peer = PeerConnection(
            connection, self.token, self.subject, self.node, role, max_line=MAX_PLAN_BYTES
        )
        self.add_reader(peer.fileno(), lambda: on_readable(peer))
        return peer

    def close_connection(self, peer: PeerConnection, linger_s: float = 0.0) -> None:
        """End a connection."""
        self.remove_reader(peer.fileno())
        peer.close(linger_s)


class Followers:
    """Those who take us for the one who decides.

    Attributes:
        authenticated: Those who have proven to be of the run, by name.
    """

    def __init__(
        self, peer_context: PeerContext, listener: Optional[socket.socket], on_message: OnMessage
    ) -> None:
        self._peer_context, self._listener, self._on_message = peer_context, listener, on_message
        self._unauthenticated: List[PeerConnection] = []
        self.authenticated: Dict[str, PeerConnection] = {}
        if listener is not None:
            listener.setblocking(False)
            listener.listen(256)
            peer_context.add_reader(listener.fileno(), self._accept)

    def tick(self, heartbeat: Optional[Dict[str, Any]], timeout_s: float) -> None:
        """Say the `heartbeat`, if there is one, and forget who is silent."""
        now = time.monotonic()
        for peer in list(self.authenticated.values()):
            if heartbeat is not None:
                peer.send(**heartbeat)
            peer.flush()
            if now - peer.last_heard > timeout_s:
                self._drop(peer)
        for peer in [
            connection
            for connection in self._unauthenticated
            if now > connection.connected_at + AUTH_TIMEOUT_S
        ]:
            self._drop(peer)

    def broadcast(self, **message: Any) -> None:
        """Tell all of them."""
        for peer in self.authenticated.values():
            peer.send(**message)

    def close(self) -> None:
        """Let them take in what was said, and part."""
        if self._listener is not None:
            self._peer_context.remove_reader(self._listener.fileno())
            self._listener.close()
        deadline = time.monotonic() + GOODBYE_TIMEOUT_S
        while time.monotonic() < deadline and any(
            not p.flushed for p in self.authenticated.values()
        ):
            unflushed = [peer for peer in self.authenticated.values() if not peer.flushed]
            select.select([], unflushed, [], 0.02)
            for peer in unflushed:
                peer.flush()
        for peer in (*self.authenticated.values(), *self._unauthenticated):
            self._peer_context.close_connection(peer, max(0.0, deadline - time.monotonic()))

    def _accept(self) -> None:
        assert self._listener is not None  # noqa: S101 (else nobody comes)
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            connection.close()
            return
        self._unauthenticated.append(
            self._peer_context.add_connection(connection, SERVER, self._receive)
        )

    def _receive(self, peer: PeerConnection) -> None:
        try:
            messages = peer.receive()
        except PeerDisconnected:
            self._drop(peer)
            return
        for message in messages:
            if peer in self._unauthenticated:
                self._unauthenticated.remove(peer)
                previous = self.authenticated.pop(peer.name, None)
                if previous is not None:
                    self._peer_context.close_connection(previous)
                self.authenticated[peer.name] = peer
            self._on_message(peer, message)

    def _drop(self, peer: PeerConnection) -> None:
        if peer in self._unauthenticated:
            self._unauthenticated.remove(peer)
        elif self.authenticated.get(peer.name) is peer:
            del self.authenticated[peer.name]
        else:
            return
        self._peer_context.close_connection(peer)


class LeaderSearch:
    """The way to the first voter before us that lives.

    Attributes:
        leader: The connection to it.
        exhausted: Whether all of them are gone, so that we are the first.
    """

    def __init__(
        self, peer_context: PeerContext, candidates: Tuple[Voter, ...], on_message: OnMessage
    ) -> None:
        self._peer_context, self._on_message = peer_context, on_message
        self._candidates = list(candidates)
        self._connecting: Optional[socket.socket] = None
        self._connect_started_at = 0.0
        self.leader: Optional[PeerConnection] = None

    @property
    def exhausted(self) -> bool:
        """Whether there is nobody to follow."""
        return self.leader is None and not self._candidates

    def tick(
        self, heartbeat: Optional[Dict[str, Any]], timeout_s: float, lost_nodes: Set[str]
    ) -> None:
        """Go on searching, or say the `heartbeat` to whom we found."""
        now, peer = time.monotonic(), self.leader
        if peer is not None:
            if heartbeat is not None:
                peer.send(**heartbeat)
            peer.flush()
            if now - peer.last_heard > timeout_s:  # it may still be ending its part
                self.drop_leader()
        elif self._candidates and self._candidates[0].node in lost_nodes:
            self._next_candidate()
        elif self._candidates and self._connecting is None:
            self._connect(self._candidates[0])
        elif self._connecting is not None:
            self._poll_connect(self._connecting, now)

    def drop_leader(self) -> None:
        """Follow whom we found no more."""
        if self.leader is not None:
            self._peer_context.close_connection(self.leader)
            self.leader = None
        self._next_candidate()

    def close(self) -> None:
        """Part."""
        self._abort_connect()
        if self.leader is not None:
            self._peer_context.close_connection(self.leader, GOODBYE_TIMEOUT_S)
            self.leader = None
        self._candidates.clear()

    def _next_candidate(self) -> None:
        self._abort_connect()
        del self._candidates[:1]

    def _abort_connect(self) -> None:
        if self._connecting is not None:
            self._connecting.close()
            self._connecting = None

    def _connect(self, voter: Voter) -> None:
        self._connect_started_at = time.monotonic()
        try:
            addresses = socket.getaddrinfo(
                *(voter.addr, voter.port, 0, socket.SOCK_STREAM), flags=socket.AI_NUMERICHOST
            )
            family, _, _, _, address = addresses[0]
            self._connecting = socket.socket(family, socket.SOCK_STREAM)
            self._connecting.setblocking(False)
            code = self._connecting.connect_ex(address)
        except OSError:
            code = errno.EHOSTUNREACH
        if code not in (0, errno.EINPROGRESS):
            self._next_candidate()

    def _poll_connect(self, connecting: socket.socket, now: float) -> None:
        if not select.select([], [connecting], [], 0)[1]:
            if now - self._connect_started_at > CONNECT_TIMEOUT_S:
                self._next_candidate()
            return
        if connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._next_candidate()
            return
        self._connecting = None
        self.leader = self._peer_context.add_connection(connecting, CLIENT, self._receive)

    def _receive(self, peer: PeerConnection) -> None:
        try:
            messages = peer.receive()
        except PeerDisconnected:
            self.drop_leader()
            return
        for message in messages:
            self._on_message(peer, message)
