"""Links between supervisors: lines of JSON over TCP, each with an HMAC of the token (RFC 2104).

The token came over SSH and is never on a disk. A line that does not have it costs its sender the
connection, and nobody else anything. What a line is worth, and whether it is new, its reader knows.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import select
import socket
import time
from typing import Any, Dict, Iterable, List, Optional, Protocol, Tuple

from runner.core.wire.codec import parse_json
from runner.host.peers.dialler import Dialler
from runner.host.process.event_loop import EventLoop

MAX_LINE = 1 << 20
MAX_FIRST_LINE = 8 << 10  # the longest one to accept of who comes in, before it is known
AUTH_TIMEOUT_S = 5.0  # how long that may take
MAX_UNAUTHENTICATED = 64
BACKLOG = 256
CONNECT_TIMEOUT_S = 2.0
RETRY_PAUSE_S = 0.1
MAX_RETRY_PAUSE_S = 2.0
LINGER_S = 1.0  # how long the last words may take to be read
LINGER_STEP_S = 0.02


class LinkClosed(Exception):
    """The peer closed the link, or sent what no holder of the token would."""


def seal(token: bytes, message: Dict[str, Any]) -> bytes:
    """Return the line that carries a message."""
    body = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
    return _mac(token, body) + b" " + body + b"\n"


def unseal(token: bytes, line: bytes) -> Dict[str, Any]:
    """Return the message in a line; raise LinkClosed if it has none."""
    mac, _, body = line.partition(b" ")
    if not hmac.compare_digest(mac, _mac(token, body)):
        raise LinkClosed("it does not know the token")
    try:
        message = parse_json(body)
    except ValueError as error:
        raise LinkClosed(f"it sent what is no message: {error}") from error
    if not isinstance(message, dict):
        raise LinkClosed("it sent what is no message")
    return message


def _mac(token: bytes, body: bytes) -> bytes:
    return hmac.new(token, body, hashlib.sha256).hexdigest().encode()


class LinkOwner(Protocol):
    """Whoever has links."""

    def first_line(self) -> bytes:
        """Return what to say on a new link whose peer is known."""

    def take(self, link: Link, message: Dict[str, Any]) -> str:
        """Take a message; return who sent it, "" if that is not certain; or raise LinkClosed."""

    def on_refused(self) -> None:
        """Nothing listens where a link goes to."""


class Link:
    """One connection; `is_known` says whether its peer has sent a message that counts."""

    def __init__(self, connection: socket.socket, token: bytes, max_line: int = MAX_LINE) -> None:
        """Take lines of up to `max_line` bytes as long as the peer is not known."""
        connection.setblocking(False)
        self.is_known = False
        self.heard_at = time.monotonic()  # when a message came last, or the connection
        self._socket = connection
        self._token = token
        self._max_line = max_line
        self._unread = b""
        self._unsent = b""
        self._latest = b""  # the line to send after that

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._socket.fileno()

    def send(self, line: bytes) -> None:
        """Send a line; where an earlier one has not even begun to be sent, this one replaces it."""
        self._latest = line
        self.flush()

    def flush(self) -> None:
        """Send what the kernel takes now."""
        try:
            while self._unsent or self._latest:
                if not self._unsent:
                    self._unsent = self._latest
                    self._latest = b""
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # reading says so
            self._unsent = b""
            self._latest = b""

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent or self._latest)

    def receive(self) -> List[Dict[str, Any]]:
        """Return the messages that have arrived, or raise LinkClosed."""
        try:
            chunk = self._socket.recv(65536)
        except BlockingIOError:
            return []
        except OSError as error:
            raise LinkClosed(error.strerror) from error
        if not chunk:
            raise LinkClosed("it closed the connection")
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        limit = MAX_LINE if self.is_known else self._max_line
        if any(len(line) > limit for line in (*lines, self._unread)):
            raise LinkClosed("it sent a line without an end")
        messages = [unseal(self._token, line) for line in lines]
        if messages and self.is_known:
            self.heard_at = time.monotonic()
        return messages

    def has_ended(self) -> bool:
        """Send what is left and no more; return whether the peer has read it all and closed."""
        self.flush()
        if self.has_unsent:
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
        self._socket.close()


def close_all(links: Iterable[Link], linger_s: float) -> None:
    """Close links once their peers have read everything, after `linger_s` at the latest.

    A connection closed with something unread is reset by the kernel, which may lose the last words.
    """
    links = list(links)
    deadline = time.monotonic() + linger_s
    waiting = [link for link in links if not link.has_ended()]
    while waiting and (remaining_s := deadline - time.monotonic()) > 0:
        poll = select.poll()
        for link in waiting:
            poll.register(link.fileno(), select.POLLOUT if link.has_unsent else select.POLLIN)
        poll.poll(1000 * min(LINGER_STEP_S, remaining_s))
        waiting = [link for link in waiting if not link.has_ended()]
    for link in links:
        link.close()


class Listener:
    """A listening socket, and the links that came in.

    Until the sender of a link is certain, it has little time, and the oldest makes room where there
    are too many. Each sender keeps its last link only.
    """

    problem = ""  # as of an `OutgoingLink`

    def __init__(
        self,
        sock: socket.socket,
        token: bytes,
        loop: EventLoop,
        owner: LinkOwner,
        *,
        auth_timeout_s: float = AUTH_TIMEOUT_S,
        max_unauthenticated: int = MAX_UNAUTHENTICATED,
    ) -> None:
        self.known: Dict[str, Link] = {}
        self._unknown: List[Link] = []  # the oldest first
        self._socket = sock
        self._token = token
        self._loop = loop
        self._owner = owner
        self._auth_timeout_s = auth_timeout_s
        self._max_unauthenticated = max_unauthenticated
        sock.setblocking(False)
        sock.listen(BACKLOG)
        loop.add_reader(sock.fileno(), self._accept)

    def tick(self) -> None:
        """Send what could not be sent before, and drop who takes too long to authenticate."""
        for link in self.known.values():
            link.flush()
        oldest = time.monotonic() - self._auth_timeout_s
        for link in [link for link in self._unknown if link.heard_at < oldest]:
            self._drop(link)

    def send(self, line: bytes) -> None:
        """Send a line to everybody who is known."""
        for link in self.known.values():
            link.send(line)

    def close(self, linger_s: float = 0.0) -> None:
        """Accept no more, and close all links once what was sent was read.

        The socket itself is the caller's, and may have a next listener.
        """
        self._loop.remove_reader(self._socket.fileno())
        for link in (*self._unknown, *self.known.values()):
            self._loop.remove_reader(link.fileno())
        heard_since = time.monotonic() - AUTH_TIMEOUT_S
        lively = [link for link in self.known.values() if link.heard_at > heard_since]
        close_all(lively, linger_s)
        close_all((*self._unknown, *self.known.values()), 0.0)
        self._unknown.clear()
        self.known.clear()

    def _accept(self) -> None:
        connection = self._loop.accept(self._socket)
        if connection is None:
            return
        link = Link(connection, self._token, MAX_FIRST_LINE)
        self._unknown.append(link)
        self._loop.add_reader(link.fileno(), lambda: self._receive(link))
        if len(self._unknown) > self._max_unauthenticated:
            self._drop(self._unknown[0])

    def _receive(self, link: Link) -> None:
        try:
            for message in link.receive():
                name = self._owner.take(link, message)
                if name and not link.is_known:
                    link.is_known = True
                    self._unknown.remove(link)
                    if name in self.known:
                        self._drop(self.known[name])
                    self.known[name] = link
                    link.send(self._owner.first_line())
        except LinkClosed:
            self._drop(link)

    def _drop(self, link: Link) -> None:
        if link in self._unknown:
            self._unknown.remove(link)
        for name in [name for name, known in self.known.items() if known is link]:
            del self.known[name]
        self._loop.remove_reader(link.fileno())
        link.close()


class OutgoingLink:
    """The link to one listener, opened again whenever it ends or nothing is heard over it."""

    def __init__(
        self,
        address: Tuple[str, int],
        token: bytes,
        loop: EventLoop,
        silence_s: float,
        owner: LinkOwner,
    ) -> None:
        self.problem = "it does not answer"  # why there is no link, or nothing is heard over it
        self._address = address
        self._token = token
        self._loop = loop
        self._owner = owner
        self._silence_s = silence_s
        self._link: Optional[Link] = None
        self._dialler: Optional[Dialler] = None
        self._pause_s = 0.0
        self._next_try_at = 0.0

    def tick(self) -> None:
        """Open the link if there is none, and send what could not be sent before."""
        if self._link is not None:
            self._link.flush()
            if time.monotonic() > self._link.heard_at + self._silence_s:
                self._reopen("it does not answer")  # TCP would wait for longer than that
        elif self._dialler is not None:
            self._finish_dialling(self._dialler)
        elif time.monotonic() >= self._next_try_at:
            self._dialler = Dialler(*self._address, CONNECT_TIMEOUT_S)

    def send(self, line: bytes) -> None:
        """Send a line, if there is a link; a new one begins with its own."""
        if self._link is not None:
            self._link.send(line)

    def close(self, linger_s: float = 0.0) -> None:
        """Close the link once what was sent was read; open one for that, if there is time."""
        deadline = time.monotonic() + linger_s
        while self._link is None and time.monotonic() < deadline:
            self.tick()
            time.sleep(LINGER_STEP_S)
        link = self._link
        self._forget(is_closing=True)
        if link is not None:
            close_all([link], max(0.0, deadline - time.monotonic()))

    def _reopen(self, problem: str) -> None:
        """Close the link, and open another: at once, if this one was of any use."""
        self.problem = problem
        was_known = self._link is not None and self._link.is_known
        self._forget()
        self._pause_s = 0.0 if was_known else min(MAX_RETRY_PAUSE_S, 2 * self._pause_s)
        self._next_try_at = time.monotonic() + self._pause_s
        self._pause_s = max(RETRY_PAUSE_S, self._pause_s)

    def _finish_dialling(self, dialler: Dialler) -> None:
        connection = dialler.poll()
        if dialler.error:
            self._reopen(dialler.reason)
            if dialler.error == errno.ECONNREFUSED:
                self._owner.on_refused()
        elif connection is not None:
            self._dialler = None
            self._link = Link(connection, self._token)
            self._loop.add_reader(self._link.fileno(), self._receive)
            self._link.send(self._owner.first_line())

    def _receive(self) -> None:
        link = self._link
        try:
            for message in link.receive() if link is not None else ():
                if self._link is link is not None and self._owner.take(link, message):
                    link.is_known = True
        except LinkClosed as error:
            if self._link is link:
                self._reopen(str(error))

    def _forget(self, *, is_closing: bool = False) -> None:
        if self._dialler is not None:
            self._dialler.close()
            self._dialler = None
        if self._link is not None:
            self._loop.remove_reader(self._link.fileno())
            if not is_closing:
                self._link.close()
            self._link = None
