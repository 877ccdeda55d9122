"""Who listens while the hosts of a cluster try to reach each other, in a child of the link."""

from __future__ import annotations

import os
import select
import socket
import time
from typing import Any, Callable, Dict, List

from runner.host.facts import ports
from runner.host.peers.connection import SERVER, Peer, PeerGone

SUBJECT = "check"

PROVE_S = 2.0
"""How long a stranger is listened to."""

MOST = 512
"""So many connections at a time; others wait in the kernel."""

BACKLOG = 256
TICK_MS = 100


def greet(
    node: str, token: bytes, address: str, held_port: int, parent: int, tell: Callable[..., None]
) -> None:
    """Listen at a port of `address`, and at the one that is held; answer until the parent ends.

    Args:
        node: Our own node.
        token: What all hosts of this check know.
        address: The address that the other nodes use.
        held_port: The master's port, which this process's parent holds; 0 for none.
        parent: The process that we answer for.
        tell: Takes `port`, or `error` where there is none; and `ready` at the end.
    """
    listeners: List[socket.socket] = []
    try:
        listeners.append(_listening(_bound(address)))
        tell(port=listeners[0].getsockname()[1])
        if held_port:
            listeners.append(_listening(ports.beside(held_port)))
    except OSError as error:
        tell(error=error.strerror or str(error))
    tell(ready=True)
    greeter = Greeter(listeners, node, token)
    while os.getppid() == parent:
        greeter.turn()


class Greeter:
    """Answers those who know the token; counts what they send."""

    def __init__(self, listeners: List[socket.socket], node: str, token: bytes) -> None:
        self._node, self._token = node, token
        self._listeners = {each.fileno(): each for each in listeners}
        self._peers: Dict[int, Peer] = {}
        self._counts: Dict[int, int] = {}
        self._poll = select.poll()
        self._open = False
        self._heed(listen=True)

    def turn(self) -> None:
        """Wait for a moment, and answer what came."""
        for number, _ in self._poll.poll(TICK_MS):
            if number in self._listeners:
                self._admit(self._listeners[number])
            elif number in self._peers:
                self._hear(number)
        now = time.monotonic()
        for number, peer in list(self._peers.items()):
            peer.flush()
            if not peer.name and now > peer.since + PROVE_S:
                self._drop(number)

    def close(self) -> None:
        """Let go of all connections."""
        for number in list(self._peers):
            self._drop(number)
        for each in self._listeners.values():
            each.close()

    def _heed(self, *, listen: bool) -> None:
        if listen == self._open:
            return
        self._open = listen
        for number in self._listeners:
            if listen:
                self._poll.register(number, select.POLLIN)
            else:
                self._poll.unregister(number)

    def _admit(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # it left again, or we have no descriptor left
            self._heed(listen=not self._peers)
            return
        peer = Peer(connection, self._token, SUBJECT, self._node, SERVER)
        self._peers[peer.fileno()] = peer
        self._counts[peer.fileno()] = 0
        self._poll.register(peer.fileno(), select.POLLIN)
        self._heed(listen=len(self._peers) < MOST)

    def _hear(self, number: int) -> None:
        peer = self._peers[number]
        try:
            for message in peer.hear():
                self._answer(number, peer, message)
        except PeerGone:
            self._drop(number)

    def _answer(self, number: int, peer: Peer, message: Dict[str, Any]) -> None:
        if message.get("say") == "here":
            peer.say(say="here")
        elif message.get("say") == "pad":
            self._counts[number] += len(str(message.get("pad", "")))
        elif message.get("say") == "how much":
            peer.say(say="so much", bytes=self._counts[number])

    def _drop(self, number: int) -> None:
        self._poll.unregister(number)
        self._peers.pop(number).close()
        self._counts.pop(number)
        self._heed(listen=True)


def _bound(address: str) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.bind((address, 0))
    except OSError:
        bound.close()
        raise
    return bound


def _listening(bound: socket.socket) -> socket.socket:
    bound.setblocking(False)
    bound.listen(BACKLOG)
    return bound
