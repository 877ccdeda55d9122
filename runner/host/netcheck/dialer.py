"""One host's tries to reach all others, side by side and within bounded time; run in a child."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections import deque
from typing import Callable, Dict, Optional, Sequence

from runner.core.model.network_probe import Contact, Outcome, Target
from runner.host.netcheck.responder import SUBJECT
from runner.host.peers.connection import CLIENT, Peer, PeerGone

AT_ONCE = 32
"""Connections at a time: on a slow line more of them would take each other for stalled."""

CONNECT_S = 3.5
"""The kernel repeats a SYN after 1 and 3 s, and gives up on a silent neighbour after 3 s."""

GREET_S = 2.5
STALL_S = 2.5
"""How long nothing more of the large packets may arrive."""

PAD, PADS = 7 << 10, 4
"""Together 28 KiB: the kernel makes packets of full size of it, also of jumbo frames."""

_TICK_MS = 50.0
_OUTCOMES = {
    errno.ECONNREFUSED: Outcome.REFUSED,
    errno.ETIMEDOUT: Outcome.TIMED_OUT,
    errno.ENETUNREACH: Outcome.NO_ROUTE,
    errno.EHOSTUNREACH: Outcome.UNREACHABLE,
    errno.ECONNRESET: Outcome.RESET,
    errno.EPIPE: Outcome.RESET,
}


def reach(
    node: str, targets: Sequence[Target], token: bytes, done: Callable[[int, Contact], None]
) -> None:
    """Try every target but our own.

    Args:
        node: Our own node; those that follow it are tried first, or all would begin with the same.
        targets: Where the nodes listen, the same on every host.
        token: What all of them know.
        done: Takes the place of a target in `targets`, and how it went.
    """
    start = next((at for at, each in enumerate(targets) if each.node == node), 0)
    order = [(start + step) % len(targets) for step in range(len(targets))]
    todo = deque(at for at in order if targets[at].node != node)
    going: Dict[int, Attempt] = {}
    while todo or going:
        while todo and len(going) < AT_ONCE:
            at = todo.popleft()
            going[at] = Attempt(targets[at], node, token)
        poll, by_number = select.poll(), {}
        for attempt in going.values():
            if attempt.contact is None:
                by_number[attempt.fileno()] = attempt
                poll.register(attempt.fileno(), attempt.events)
        for number, _ in poll.poll(_TICK_MS if by_number else 0):
            by_number[number].advance()
        for at, attempt in list(going.items()):
            attempt.look()
            if attempt.contact is not None:
                done(at, attempt.contact)
                del going[at]


class Attempt:
    """One connection: made, proven to be of ours, and filled with large packets.

    Attributes:
        contact: How it went; None while it goes on.
    """

    def __init__(self, target: Target, node: str, token: bytes) -> None:
        self.contact: Optional[Contact] = None
        self._target, self._node, self._token = target, node, token
        family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
        self._since = time.monotonic()
        self._peer: Optional[Peer] = None
        self._left, self._asked, self._acked = PADS, False, 0
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        error = self._socket.connect_ex((target.address, target.port))
        if error not in (0, errno.EINPROGRESS):
            self._fail(error)

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._socket.fileno()

    @property
    def events(self) -> int:
        """What to watch it for."""
        if self._peer is None:
            return select.POLLOUT
        more = self._peer.name and (self._left or not self._peer.ready)
        return select.POLLIN | (select.POLLOUT if more else 0)

    def advance(self) -> None:
        """Go on: the connection can be read, or written to."""
        if self._peer is None:
            error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self._fail(error)
                return
            self._since = time.monotonic()
            self._peer = Peer(self._socket, self._token, SUBJECT, self._node, CLIENT)
            self._peer.say(say="here")
            return
        self._peer.flush()
        try:
            self._hear(self._peer)
        except PeerGone as gone:
            cause = gone.__cause__
            if isinstance(cause, OSError):
                self._fail(cause.errno or 0)
            else:
                self._end(Outcome.RESET if self._peer.name else Outcome.STRANGER)
            return
        if self.contact is None:
            self._fill(self._peer)

    def look(self) -> None:
        """See whether its time is up."""
        if self.contact is not None:
            return
        now = time.monotonic()
        if self._peer is None:
            if now > self._since + CONNECT_S:
                self._end(Outcome.TIMED_OUT)
        elif not self._peer.name:
            if now > self._since + GREET_S:
                self._end(Outcome.MUTE)
        else:
            acked = _info(self._socket, "=Q", 120)
            if acked != self._acked:
                self._acked, self._since = acked, now
            elif now > self._since + STALL_S:
                self._end(Outcome.STALLED)

    def _hear(self, peer: Peer) -> None:
        for message in peer.hear():
            if peer.name != self._target.node:
                self._end(Outcome.STRANGER, peer.name)
                return
            self._since = time.monotonic()
            if message.get("say") == "so much":
                whole = message.get("bytes") == PAD * PADS
                self._end(Outcome.REACHED if whole else Outcome.FAILED)
                return

    def _fill(self, peer: Peer) -> None:
        while peer.name and self._left and peer.ready:
            peer.say(say="pad", pad="x" * PAD)
            self._left -= 1
        if peer.name and not self._left and not self._asked:
            self._asked = True
            peer.say(say="how much")

    def _fail(self, error: int) -> None:
        outcome = _OUTCOMES.get(error, Outcome.FAILED)
        self._end(outcome, os.strerror(error) if outcome is Outcome.FAILED else "")

    def _end(self, outcome: Outcome, detail: str = "") -> None:
        trip_s = 0.0
        if self._peer is not None:
            trip = _info(self._socket, "=I", 148)  # the least there was
            if not 0 < trip < 0xFFFFFFFF:
                trip = _info(self._socket, "=I", 68)
            trip_s = trip / 1e6
        self._socket.close()
        self.contact = Contact(self._target, outcome, trip_s, detail)


def _info(connection: socket.socket, form: str, offset: int) -> int:
    """Return a field of the kernel's `struct tcp_info` (linux/tcp.h), 0 if it is an older one."""
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    if len(told) < offset + struct.calcsize(form):
        return 0
    return int(struct.unpack_from(form, told, offset)[0])
