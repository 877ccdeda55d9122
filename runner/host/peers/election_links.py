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
from runner.host.peers.connection import CLIENT, SERVER, Peer, PeerGone
from runner.host.peers.group import FAREWELL_S, PROVE_S, Watch

CONNECT_S = 5.0
"""How long a voter may take to take a connection."""

STRANGERS = 64
BIG = 64 << 20
"""A message of a voter may be so long: it holds a plan."""

Said = Callable[[Peer, Dict[str, Any]], None]


class Ring(NamedTuple):
    """What a connection needs: who speaks, of what, with which proof, and who looks for news."""

    node: str
    subject: str
    token: bytes
    watch: Watch
    unwatch: Callable[[int], None]

    def greet(self, connection: socket.socket, role: bytes, hear: Callable[[Peer], None]) -> Peer:
        """Return the other end of a connection."""
        peer = Peer(connection, self.token, self.subject, self.node, role, most=BIG)
        self.watch(peer.fileno(), lambda: hear(peer))
        return peer

    def part(self, peer: Peer, linger_s: float = 0.0) -> None:
        """End a connection."""
        self.unwatch(peer.fileno())
        peer.close(linger_s)


class Callers:
    """Those who take us for the one who decides.

    Attributes:
        known: Those who have proven to be of the run, by name.
    """

    def __init__(self, ring: Ring, listener: Optional[socket.socket], said: Said) -> None:
        self._ring, self._listener, self._said = ring, listener, said
        self._strangers: List[Peer] = []
        self.known: Dict[str, Peer] = {}
        if listener is not None:
            listener.setblocking(False)
            listener.listen(256)
            ring.watch(listener.fileno(), self._admit)

    def tick(self, beat: Optional[Dict[str, Any]], patience_s: float) -> None:
        """Say the `beat`, if there is one, and forget who is silent."""
        now = time.monotonic()
        for peer in list(self.known.values()):
            if beat is not None:
                peer.say(**beat)
            peer.flush()
            if now - peer.heard > patience_s:
                self._forget(peer)
        for peer in [each for each in self._strangers if now > each.since + PROVE_S]:
            self._forget(peer)

    def say(self, **words: Any) -> None:
        """Tell all of them."""
        for peer in self.known.values():
            peer.say(**words)

    def close(self) -> None:
        """Let them take in what was said, and part."""
        if self._listener is not None:
            self._ring.unwatch(self._listener.fileno())
            self._listener.close()
        until = time.monotonic() + FAREWELL_S
        while time.monotonic() < until and any(not p.ready for p in self.known.values()):
            unsent = [peer for peer in self.known.values() if not peer.ready]
            select.select([], unsent, [], 0.02)
            for peer in unsent:
                peer.flush()
        for peer in (*self.known.values(), *self._strangers):
            self._ring.part(peer, max(0.0, until - time.monotonic()))

    def _admit(self) -> None:
        assert self._listener is not None  # noqa: S101 (else nobody comes)
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if len(self._strangers) >= STRANGERS:
            connection.close()
            return
        self._strangers.append(self._ring.greet(connection, SERVER, self._hear))

    def _hear(self, peer: Peer) -> None:
        try:
            messages = peer.hear()
        except PeerGone:
            self._forget(peer)
            return
        for message in messages:
            if peer in self._strangers:
                self._strangers.remove(peer)
                before = self.known.pop(peer.name, None)
                if before is not None:
                    self._ring.part(before)
                self.known[peer.name] = peer
            self._said(peer, message)

    def _forget(self, peer: Peer) -> None:
        if peer in self._strangers:
            self._strangers.remove(peer)
        elif self.known.get(peer.name) is peer:
            del self.known[peer.name]
        else:
            return
        self._ring.part(peer)


class Search:
    """The way to the first voter before us that lives.

    Attributes:
        found: The connection to it.
        over: Whether all of them are gone, so that we are the first.
    """

    def __init__(self, ring: Ring, before: Tuple[Voter, ...], said: Said) -> None:
        self._ring, self._said = ring, said
        self._left = list(before)
        self._connecting: Optional[socket.socket] = None
        self._began = 0.0
        self.found: Optional[Peer] = None

    @property
    def over(self) -> bool:
        """Whether there is nobody to follow."""
        return self.found is None and not self._left

    def tick(self, beat: Optional[Dict[str, Any]], patience_s: float, lost: Set[str]) -> None:
        """Go on searching, or say the `beat` to whom we found."""
        now, peer = time.monotonic(), self.found
        if peer is not None:
            if beat is not None:
                peer.say(**beat)
            peer.flush()
            if now - peer.heard > patience_s:  # it may still be ending its part
                self.lose()
        elif self._left and self._left[0].node in lost:
            self._next()
        elif self._left and self._connecting is None:
            self._connect(self._left[0])
        elif self._connecting is not None:
            self._look(self._connecting, now)

    def lose(self) -> None:
        """Follow whom we found no more."""
        if self.found is not None:
            self._ring.part(self.found)
            self.found = None
        self._next()

    def close(self) -> None:
        """Part."""
        self._drop_try()
        if self.found is not None:
            self._ring.part(self.found, FAREWELL_S)
            self.found = None
        self._left.clear()

    def _next(self) -> None:
        self._drop_try()
        del self._left[:1]

    def _drop_try(self) -> None:
        if self._connecting is not None:
            self._connecting.close()
            self._connecting = None

    def _connect(self, voter: Voter) -> None:
        self._began = time.monotonic()
        try:
            info = socket.getaddrinfo(
                *(voter.addr, voter.port, 0, socket.SOCK_STREAM), flags=socket.AI_NUMERICHOST
            )
            family, _, _, _, address = info[0]
            self._connecting = socket.socket(family, socket.SOCK_STREAM)
            self._connecting.setblocking(False)
            code = self._connecting.connect_ex(address)
        except OSError:
            code = errno.EHOSTUNREACH
        if code not in (0, errno.EINPROGRESS):
            self._next()

    def _look(self, connecting: socket.socket, now: float) -> None:
        if not select.select([], [connecting], [], 0)[1]:
            if now - self._began > CONNECT_S:
                self._next()
            return
        if connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._next()
            return
        self._connecting = None
        self.found = self._ring.greet(connecting, CLIENT, self._hear)

    def _hear(self, peer: Peer) -> None:
        try:
            messages = peer.hear()
        except PeerGone:
            self.lose()
            return
        for message in messages:
            self._said(peer, message)
