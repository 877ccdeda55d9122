"""Links between supervisors: lines of JSON over TCP, each with an HMAC of the token (RFC 2104).

The token came over SSH and is never on a disk. A line that does not have it costs its sender the
connection, and nobody else anything. What a line is worth, and whether it is new, its reader knows.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
import socket
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from runner.core.wire.codec import parse_json
from runner.host.process.event_loop import EventLoop

MAX_LINE = 1 << 20  # what a hub has to say
MAX_MEMBER_LINE = 8 << 10
MAX_UNAUTHENTICATED = 64
BACKLOG = 256
RETRY_PAUSE_S = 0.2
LINGER_S = 1.0  # how long the last words may take to be read
NO_ANSWER = "it does not answer"

SayFirst = Callable[[], bytes]
"""Returns what to say on a new link whose peer is known."""
Take = Callable[[bytes], str]
"""Takes a line; returns who sent it, "" if that is not certain. ValueError: it is no message."""


def seal(token: bytes, message: Dict[str, Any]) -> bytes:
    """Return the line that carries a message."""
    body = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
    return _mac(token, body) + b" " + body + b"\n"


def unseal(token: bytes, line: bytes) -> Dict[str, Any]:
    """Return the message in a line; raise ValueError if it has none."""
    mac, _, body = line.partition(b" ")
    if not hmac.compare_digest(mac, _mac(token, body)):
        raise ValueError("it does not know the token")
    message = parse_json(body)
    if not isinstance(message, dict):
        raise ValueError("it sent what is no message")
    return message


def _mac(token: bytes, body: bytes) -> bytes:
    return hmac.new(token, body, hashlib.sha256).hexdigest().encode()


class Link:
    """One connection that carries lines, perhaps not established yet.

    Attributes:
        peer: Who has sent a message over it that counts, "" for nobody yet.
        heard_at: When such a message came last, or the link began.
        error: Why it is of no more use, None while it is.
    """

    def __init__(self, connection: socket.socket, max_line: int, take: Take) -> None:
        connection.setblocking(False)
        self.peer = ""
        self.heard_at = time.monotonic()
        self.error: Optional[Exception] = None
        self._send_error: Optional[Exception] = None
        self._socket = connection
        self._max_line = max_line
        self._take = take
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
        except OSError as error:  # reading ends by it, after what has arrived
            self._send_error = self._send_error or error
            self._unsent = b""
            self._latest = b""

    def receive(self) -> None:
        """Take the lines that have arrived."""
        try:
            chunk = self._socket.recv(65536)
            if not chunk:
                raise ValueError("it closed the connection")
            *lines, self._unread = (self._unread + chunk).split(b"\n")
            if any(len(line) > self._max_line for line in (*lines, self._unread)):
                raise ValueError("it sent a line without an end")
            for line in lines:
                self.peer = self._take(line) or self.peer
                if self.peer:
                    self.heard_at = time.monotonic()
        except BlockingIOError:
            pass
        except (OSError, ValueError) as error:
            self.error = self._send_error or error

    def say_last(self) -> None:
        """Send what is left now, and no more."""
        self.flush()
        with contextlib.suppress(OSError):
            if not self._unsent:
                self._socket.shutdown(socket.SHUT_WR)

    def close(self, deadline: float = 0.0) -> None:
        """Close it once the peer has read all and closed it, too; or at the deadline."""
        with contextlib.suppress(OSError):
            self._socket.settimeout(max(0.0, deadline - time.monotonic()))
            self._socket.sendall(self._unsent + self._latest)
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(65536):
                self._socket.settimeout(max(0.0, deadline - time.monotonic()))
        self._socket.close()


def close_all(links: Iterable[Link], linger_s: float) -> None:
    """Close links once their peers have read everything, after `linger_s` at the latest.

    A connection closed with something unread is reset by the kernel, which may lose the last words.
    """
    links = list(links)
    deadline = time.monotonic() + linger_s
    for link in links:
        link.say_last()
    for link in links:
        link.close(deadline)


class Listener:
    """A listening socket, and the links that came in.

    Of those whose peer is not certain, the oldest makes room where there are too many. Each peer
    keeps its last link only.
    """

    problem = ""  # as of an `OutgoingLink`
    is_refused = False

    def __init__(
        self, sock: socket.socket, loop: EventLoop, say_first: SayFirst, take: Take
    ) -> None:
        self._links: List[Link] = []  # the oldest first
        self._socket = sock
        self._loop = loop
        self._say_first = say_first
        self._take = take
        sock.setblocking(False)
        sock.listen(BACKLOG)
        loop.add_reader(sock.fileno(), self._accept)

    def tick(self) -> None:
        """Send what could not be sent before."""
        for link in self._links:
            link.flush()

    def send(self, line: bytes) -> None:
        """Send a line to everybody who is known."""
        for link in self._links:
            if link.peer:
                link.send(line)

    def close(self, linger_s: float = 0.0) -> None:
        """Accept no more, and close all links once what was sent was read.

        The socket itself is the caller's, and may have a next listener.
        """
        self._loop.remove_reader(self._socket.fileno())
        known = [link for link in self._links if link.peer]
        for link in [*self._links]:
            self._loop.remove_reader(link.fileno())
            if not link.peer:
                link.close()
        self._links = []
        close_all(known, linger_s)

    def _accept(self) -> None:
        connection = self._loop.accept(self._socket)
        if connection is None:
            return
        link = Link(connection, MAX_MEMBER_LINE, self._take)
        self._links.append(link)
        self._loop.add_reader(link.fileno(), lambda: self._receive(link))
        unknown = [link for link in self._links if not link.peer]
        if len(unknown) > MAX_UNAUTHENTICATED:
            self._drop(unknown[0])

    def _receive(self, link: Link) -> None:
        if link not in self._links:
            return  # a later one has taken its place in this very turn
        was_known = bool(link.peer)
        link.receive()
        if link.peer and not was_known:
            for other in [each for each in self._links if each.peer == link.peer]:
                if other is not link:
                    self._drop(other)
            link.send(self._say_first())
        if link.error is not None:
            self._drop(link)

    def _drop(self, link: Link) -> None:
        self._links.remove(link)
        self._loop.remove_reader(link.fileno())
        link.close()


class OutgoingLink:
    """The link to one listener, opened again whenever it ends or nothing is heard over it.

    Attributes:
        is_refused: Whether nothing listened there, until the next try.
    """

    def __init__(
        self,
        address: Tuple[str, int],
        loop: EventLoop,
        silence_s: float,
        say_first: SayFirst,
        take: Take,
    ) -> None:
        self.is_refused = False
        self._error: Exception = TimeoutError(errno.ETIMEDOUT, NO_ANSWER)
        self._address = address
        self._loop = loop
        self._silence_s = silence_s
        self._say_first = say_first
        self._take = take
        self._link: Optional[Link] = None
        self._next_try_at = 0.0

    @property
    def problem(self) -> str:
        """Why there is no link, or nothing is heard over it."""
        return str(getattr(self._error, "strerror", None) or self._error)

    def tick(self) -> None:
        """Open the link if there is none, and send what could not be sent before."""
        link = self._link
        if link is None:
            if time.monotonic() >= self._next_try_at:
                self._open()
            return
        link.flush()
        is_silent = time.monotonic() > link.heard_at + self._silence_s
        if is_silent and link.error is None:  # TCP would wait for longer than that
            link.error = TimeoutError(errno.ETIMEDOUT, NO_ANSWER)
        self._give_up_if_useless(link)

    def send(self, line: bytes) -> None:
        """Send a line, if there is a link; a new one begins with its own."""
        if self._link is not None:
            self._link.send(line)

    def close(self, linger_s: float = 0.0) -> None:
        """Close the link once what was sent was read; open one for that, if there is time."""
        if self._link is None and linger_s:
            self._open()
        link = self._link
        if link is not None:
            self._loop.remove_reader(link.fileno())
            self._link = None
            link.close(time.monotonic() + linger_s)

    def _open(self) -> None:
        self.is_refused = False
        host, port = self._address
        try:
            # Numeric, since a resolver may take half a minute.
            flags = socket.AI_NUMERICHOST
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
            family, kind, _, _, address = found[0]
            connection = socket.socket(family, kind)
        except OSError as error:  # no address, or no descriptor is left
            self._retry_later(error)
            return
        link = Link(connection, MAX_LINE, self._take)
        error_number = connection.connect_ex(address)
        if error_number not in (0, errno.EINPROGRESS):
            link.error = OSError(error_number, os.strerror(error_number))
        self._link = link
        self._loop.add_reader(link.fileno(), lambda: self._receive(link))
        link.send(self._say_first())
        self._give_up_if_useless(link)

    def _receive(self, link: Link) -> None:
        link.receive()
        self._give_up_if_useless(link)

    def _give_up_if_useless(self, link: Link) -> None:
        if link.error is not None and link is self._link:
            self._loop.remove_reader(link.fileno())
            link.close()
            self._link = None
            self._retry_later(link.error)

    def _retry_later(self, error: Exception) -> None:
        self._error = error
        self.is_refused = isinstance(error, ConnectionRefusedError)
        self._next_try_at = time.monotonic() + RETRY_PAUSE_S
