"""Authenticated connections between supervisors: lines of JSON, signed with the run's token.

Each end greets with its node and a nonce; the HMAC over both greetings with the token gives the key
of this connection, and every later line carries a counted HMAC (RFC 2104). The token came over SSH
and is never on a disk.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import select
import socket
import time
from collections import Counter
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional

from runner.host.process.event_loop import EventLoop

MAX_LINE = 8 << 10
MAX_HELLO = 1 << 10  # the longest line to accept from a peer that has not authenticated
MAX_UNSENT = 64 << 10
AUTH_TIMEOUT_S = 5.0  # how long a connection may take to prove that it knows the token
MAX_UNAUTHENTICATED = 64
BACKLOG = 256
FLUSH_PAUSE_S = 0.02
HELLO = re.compile(rb'\{"node": ("[^"\\\\]{1,255}"), "nonce": "[0-9a-f]{32}"\}')
GOODBYE_TIMEOUT_S = 1.0  # a group shuts down within about twice that
CLIENT = b"c"
SERVER = b"s"


class PeerDisconnected(Exception):
    """The peer closed the connection, could not authenticate, or sent what is no message."""


class Identity(NamedTuple):
    """What our end of a connection states and proves in the handshake."""

    node: str
    subject: str  # what the connection is about; both ends must name the same
    token: bytes
    max_line: int = MAX_LINE  # what to accept from an authenticated peer, in bytes


class PeerConnection:
    """Our end of one connection.

    Attributes:
        name: The peer's node; "" until the peer has proven to know the token.
        last_heard: When the last authenticated message came, or the connection was made.
    """

    def __init__(self, connection: socket.socket, identity: Identity, role: bytes) -> None:
        """Send the greeting over a connected stream socket, as `CLIENT` or `SERVER`."""
        connection.setblocking(False)
        self.name = ""
        self.closed = False
        self.last_heard = self.connected_at = time.monotonic()
        self._socket = connection
        self._identity = identity
        self._role = role
        self._loop: Optional[EventLoop] = None
        self._signer: Optional[Signer] = None
        self._claimed_name = ""
        self._pending: List[bytes] = []
        self._unread = b""
        greeting = {"node": identity.node, "nonce": os.urandom(16).hex()}
        self._hello = json.dumps(greeting, ensure_ascii=False).encode()
        self._unsent = self._hello + b"\n"
        self.flush()

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._socket.fileno()

    def watch(self, loop: EventLoop, on_message: OnMessage, on_disconnect: OnDisconnect) -> None:
        """Have `loop` pass on the messages and the end of this connection, until it is closed."""
        self._loop = loop
        loop.add_reader(self.fileno(), lambda: self.dispatch(on_message, on_disconnect))

    def dispatch(self, on_message: OnMessage, on_disconnect: OnDisconnect) -> None:
        """Pass on what has arrived; `on_message` raises PeerDisconnected for what is illegal."""
        if self.closed:
            return
        try:
            for message in self.receive():
                if not self.closed:
                    on_message(self, message)
        except PeerDisconnected as error:
            on_disconnect(self, error)

    def send(self, **message: Any) -> None:
        """Send a message, once the handshake has given the key to sign it with."""
        body = json.dumps(message, separators=(",", ":")).encode()
        if self._signer is None:
            self._pending.append(body)
        elif len(self._unsent) <= MAX_UNSENT:  # else the peer reads nothing: its silence will show
            self._unsent += self._signer.sign(body)
            self.flush()

    def receive(self) -> List[Dict[str, Any]]:
        """Return the messages that have arrived, or raise PeerDisconnected."""
        try:
            chunk = self._socket.recv(65536)
        except BlockingIOError:
            return []
        except OSError as error:
            raise PeerDisconnected(error.strerror) from error
        if not chunk:
            raise PeerDisconnected("it closed the connection")
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        max_line = self._identity.max_line if self.name else MAX_HELLO
        if any(len(line) > max_line for line in (*lines, self._unread)):
            raise PeerDisconnected("it sent a line without an end")
        return [message for line in lines for message in self._parse_line(line)]

    def flush(self) -> None:
        """Send what the kernel takes now."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""  # reading says so

    @property
    def flushed(self) -> bool:
        """Whether the kernel has taken everything that was to be sent."""
        return self._signer is not None and not self._unsent

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    def finish(self) -> bool:
        """Send what is left and half-close; return whether the peer has read it all and closed."""
        self.flush()
        if self._unsent:
            return False
        try:
            self._socket.shutdown(socket.SHUT_WR)
            return not self._socket.recv(65536)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """End the connection now."""
        if self.closed:
            return
        self.finish()
        if self._loop is not None:
            self._loop.remove_reader(self.fileno())
        self.closed = True
        self._socket.close()

    def _parse_line(self, line: bytes) -> List[Dict[str, Any]]:
        try:
            if self._signer is None:
                self._handshake(line)
                return []
            message = json.loads(self._signer.verify(line))
            if not isinstance(message, dict):
                raise ValueError("no object")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise PeerDisconnected(f"it sent what is no message: {error}") from error
        self.name = self._claimed_name
        self.last_heard = time.monotonic()
        return [message]

    def _handshake(self, line: bytes) -> None:
        hello = HELLO.fullmatch(line)
        if hello is None:
            raise ValueError("no greeting")
        self._claimed_name = json.loads(hello[1])
        hellos = (self._hello, line) if self._role == CLIENT else (line, self._hello)
        key_material = b"\0".join((self._identity.subject.encode(), *hellos))
        key = hmac.new(self._identity.token, key_material, hashlib.sha256).digest()
        self._signer = Signer(key, self._role)
        self._unsent += b"".join(self._signer.sign(body) for body in self._pending)
        self._pending.clear()
        self.flush()


class Signer:
    """The signatures of one connection: a counted HMAC before each line, one count a direction."""

    def __init__(self, key: bytes, role: bytes) -> None:
        self._key = key
        self._role = role
        self._peer_role = SERVER if role == CLIENT else CLIENT
        self._sent_count = self._received_count = 0

    def sign(self, body: bytes) -> bytes:
        """Return the line that carries `body`."""
        mac = self._mac(self._role, self._sent_count, body)
        self._sent_count += 1
        return mac + b" " + body + b"\n"

    def verify(self, line: bytes) -> bytes:
        """Return the body of the peer's next line; PeerDisconnected if it was not signed so."""
        mac, _, body = line.partition(b" ")
        if not hmac.compare_digest(mac, self._mac(self._peer_role, self._received_count, body)):
            raise PeerDisconnected("it does not know the token")
        self._received_count += 1
        return body

    def _mac(self, role: bytes, counter: int, body: bytes) -> bytes:
        signed = role + str(counter).encode() + b" " + body
        return hmac.new(self._key, signed, hashlib.sha256).hexdigest().encode()


OnMessage = Callable[[PeerConnection, Dict[str, Any]], None]
OnDisconnect = Callable[[PeerConnection, PeerDisconnected], None]


class Listener:
    """A listening socket with the connections that have not authenticated yet.

    The first message of a connection authenticates it: from then on it is the owner's, which gets
    its messages and its end. Where too many do not, the oldest makes room, of the address that has
    most of them.
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
        self._socket = sock
        self._identity = identity
        self._loop = loop
        self._on_message = on_message
        self._on_disconnect = on_disconnect
        self._auth_timeout_s = auth_timeout_s
        self._max_unauthenticated = max_unauthenticated
        self._unauthenticated: Dict[PeerConnection, str] = {}  # their addresses, the oldest first
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
        connection = self._loop.accept(self._socket)
        if connection is None:
            return
        peer = PeerConnection(connection, self._identity, SERVER)
        peer.watch(self._loop, self._receive, self._disconnect)
        self._unauthenticated[peer] = _peer_address(connection)
        if len(self._unauthenticated) > self._max_unauthenticated:
            counts = Counter(self._unauthenticated.values())
            most = max(counts.values())
            oldest = (p for p, host in self._unauthenticated.items() if counts[host] == most)
            self._drop(next(oldest))

    def _receive(self, peer: PeerConnection, message: Dict[str, Any]) -> None:
        self._unauthenticated.pop(peer, None)
        self._on_message(peer, message)

    def _disconnect(self, peer: PeerConnection, error: PeerDisconnected) -> None:
        if peer in self._unauthenticated:
            self._drop(peer)
        else:
            self._on_disconnect(peer, error)

    def _drop(self, peer: PeerConnection) -> None:
        self._unauthenticated.pop(peer, None)
        peer.close()


def _peer_address(connection: socket.socket) -> str:
    try:
        return str(connection.getpeername()[0])
    except OSError:  # it is gone again
        return ""


def close_all(connections: Iterable[PeerConnection], linger_s: float) -> None:
    """Close connections, after waiting up to `linger_s` for the peers to read everything.

    A connection closed with something unread is reset by the kernel, which may lose the last words.
    """
    connections = tuple(connections)
    deadline = time.monotonic() + linger_s
    waiting = [peer for peer in connections if not peer.finish()]
    while waiting and (remaining_s := deadline - time.monotonic()) > 0:
        poll = select.poll()
        for peer in waiting:
            poll.register(peer.fileno(), select.POLLOUT if peer.has_unsent else select.POLLIN)
        poll.poll(1000 * min(FLUSH_PAUSE_S, remaining_s))
        waiting = [peer for peer in waiting if not peer.finish()]
    for peer in connections:
        peer.close()
