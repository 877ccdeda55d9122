"""Connections of an election: from each supervisor to the first voter that lives.

Every supervisor listens from its start, so that one which is still ending its part differs from
one that is gone: the latter refuses, or is silent.
"""

from __future__ import annotations

import socket
import time
from typing import Any, Collection, Dict, Optional, Tuple

from runner.core.relaunch.handover import Voter
from runner.host.peers.connection import (
    CLIENT,
    GOODBYE_TIMEOUT_S,
    Identity,
    Listener,
    OnMessage,
    PeerConnection,
    PeerDisconnected,
    close_all,
)
from runner.host.peers.dialler import Dialler
from runner.host.process.event_loop import EventLoop

CONNECT_TIMEOUT_S = 5.0  # how long a voter may take to accept a connection
MAX_PLAN_BYTES = 64 << 20  # the longest message of a voter: it holds a plan


class Followers:
    """The supervisors that take us for the leader: their `authenticated` connections, by node."""

    def __init__(
        self,
        identity: Identity,
        loop: EventLoop,
        listening_socket: Optional[socket.socket],
        on_message: OnMessage,
    ) -> None:
        self.authenticated: Dict[str, PeerConnection] = {}
        self._on_message = on_message
        self._listener: Optional[Listener] = None
        if listening_socket is not None:
            self._listener = Listener(
                listening_socket,
                identity,
                loop,
                self._receive,
                on_disconnect=lambda peer, _: self._drop(peer),
            )

    def tick(self, heartbeat: Optional[Dict[str, Any]], timeout_s: float) -> None:
        """Send the `heartbeat`, if there is one, and drop the connections that are silent."""
        now = time.monotonic()
        for peer in list(self.authenticated.values()):
            if heartbeat is not None:
                peer.send(**heartbeat)
            peer.flush()
            if now - peer.last_heard > timeout_s:
                self._drop(peer)
        if self._listener is not None:
            self._listener.tick()

    def broadcast(self, **message: Any) -> None:
        """Send all of them a message."""
        for peer in self.authenticated.values():
            peer.send(**message)

    def close(self) -> None:
        """Close the connections, once the followers have read what was sent."""
        if self._listener is not None:
            self._listener.close()
        close_all(self.authenticated.values(), GOODBYE_TIMEOUT_S)

    def _receive(self, peer: PeerConnection, message: Dict[str, Any]) -> None:
        previous = self.authenticated.get(peer.name)
        if previous is not peer:
            if previous is not None:
                previous.close()
            self.authenticated[peer.name] = peer
        self._on_message(peer, message)

    def _drop(self, peer: PeerConnection) -> None:
        if self.authenticated.get(peer.name) is peer:
            del self.authenticated[peer.name]
        peer.close()


class LeaderSearch:
    """The search for the leader: the first voter before us that lives."""

    def __init__(
        self,
        identity: Identity,
        loop: EventLoop,
        candidates: Tuple[Voter, ...],
        on_message: OnMessage,
    ) -> None:
        self.leader: Optional[PeerConnection] = None
        self.leader_lost = False  # there was one, and there is none now
        self.is_over = False  # another has led: we do not, even when it is gone
        self._identity = identity
        self._loop = loop
        self._on_message = on_message
        self._candidates = list(candidates)
        self._dialler: Optional[Dialler] = None

    @property
    def exhausted(self) -> bool:
        """Whether all voters before us are gone, so that we lead."""
        return self.leader is None and not self._candidates and not self.is_over

    def tick(
        self, heartbeat: Optional[Dict[str, Any]], timeout_s: float, lost_nodes: Collection[str]
    ) -> None:
        """Continue the search, or send the leader the `heartbeat`."""
        if self.leader is not None:
            if heartbeat is not None:
                self.leader.send(**heartbeat)
            self.leader.flush()
            # Longer than a heartbeat: the leader may still be ending its part.
            if time.monotonic() - self.leader.last_heard > timeout_s:
                self._drop_leader()
        elif self._candidates and self._candidates[0].node in lost_nodes:
            self._next_candidate()
        elif self._candidates:
            self._dial(self._candidates[0])

    def close(self) -> None:
        """End the search, once the leader has read what was sent."""
        self._abort_dial()
        if self.leader is not None:
            close_all([self.leader], GOODBYE_TIMEOUT_S)
            self.leader = None
        self._candidates.clear()

    def _drop_leader(self) -> None:
        if self.leader is not None:
            self.leader.close()
            self.leader = None
            self.leader_lost = True
        self._next_candidate()

    def _next_candidate(self) -> None:
        self._abort_dial()
        del self._candidates[:1]

    def _abort_dial(self) -> None:
        if self._dialler is not None:
            self._dialler.close()
            self._dialler = None

    def _dial(self, voter: Voter) -> None:
        if self._dialler is None:
            try:
                self._dialler = Dialler(voter.addr, voter.port, CONNECT_TIMEOUT_S)
            except OSError:  # no descriptor is left, or the host has no such address family
                self._next_candidate()
                return
        connection = self._dialler.poll()
        if self._dialler.error:
            self._next_candidate()
        elif connection is not None:
            self._dialler = None
            self.leader_lost = False
            self.leader = PeerConnection(connection, self._identity, CLIENT)
            self.leader.watch(self._loop, self._on_message, self._on_disconnect)

    def _on_disconnect(self, peer: PeerConnection, _: PeerDisconnected) -> None:
        if peer is self.leader:
            self._drop_leader()
