"""Links: lines between supervisors over TCP, and from agents over the socket of a run.

A line between supervisors has an HMAC of a token (RFC 2104) that came over SSH and is never on a
disk. One that does not have it costs its sender the connection, and nobody else anything. What a
line is worth, and whether it is new, its reader knows.
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
from typing import Any, Callable, Dict, List, Optional, Tuple

from runner.core.wire.codec import parse_json
from runner.host.process.event_loop import EventLoop
from runner.host.storage import run_owner

MAX_LINE = 1 << 20  # what a hub has to say
MAX_MEMBER_LINE = 8 << 10
MAX_UNKNOWN = 64
BACKLOG = 256
RETRY_PAUSE_S = 0.2
LINGER_S = 1.0  # how long the last words may take to be read


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
        peer: Who has sent a line over it that counts, "" for nobody yet.
        heard_at: When such a line came last, or the link began.
        error: Why it is of no more use, None while it is.
    """

    def __init__(
        self,
        connection: socket.socket,
        loop: EventLoop,
        max_line: int,
        take: Callable[[Link, bytes], str],
        then: Callable[[Link], None],
    ) -> None:
        """Read from now on.

        `take` gets each line, and returns who sent it, "" if that is not certain; ValueError: it is
        no message. `then` is called after each turn of reading.
        """
        connection.setblocking(False)
        self.peer = ""
        self.heard_at = time.monotonic()
        self.error: Optional[Exception] = None
        self._send_error: Optional[Exception] = None
        self.socket = connection
        self._loop = loop
        self._max_line = max_line
        self._take = take
        self._then = then
        self._unread = b""
        self._unsent = b""
        self._latest = b""  # the line to send after that
        loop.add_reader(connection.fileno(), self._receive)

    def send(self, line: bytes) -> None:
        """Send a line; where an earlier one has not even begun to be sent, this one replaces it."""
        self._latest = line
        self.flush()

    def flush(self) -> None:
        try:
            while self._unsent or self._latest:
                if not self._unsent:
                    self._unsent = self._latest
                    self._latest = b""
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:  # reading ends by it, after what has arrived
            self._send_error = self._send_error or error
            self._unsent = b""
            self._latest = b""

    def _receive(self) -> None:
        if self.socket.fileno() < 0:
            return  # it was closed in this very turn of the loop
        try:
            chunk = self.socket.recv(65536)
            if not chunk:
                raise ValueError("it closed the connection")
            *lines, self._unread = (self._unread + chunk).split(b"\n")
            if any(len(line) > self._max_line for line in (*lines, self._unread)):
                raise ValueError("it sent a line without an end")
            for line in lines:
                self.peer = self._take(self, line) or self.peer
                if self.peer:
                    self.heard_at = time.monotonic()
        except BlockingIOError:
            pass
        except (OSError, ValueError) as error:
            self.error = self._send_error or error
        self._then(self)

    def close(self, deadline: float = 0.0) -> None:
        """Close it once the peer has read all and closed it, too; or at the deadline.

        A connection closed with something unread is reset by the kernel, which may lose the last
        words.
        """
        self._loop.remove_reader(self.socket.fileno())
        with contextlib.suppress(OSError):
            self.socket.settimeout(max(0.0, deadline - time.monotonic()))
            self.socket.sendall(self._unsent + self._latest)
            self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(65536):
                self.socket.settimeout(max(0.0, deadline - time.monotonic()))
        self.socket.close()


class Listener:
    """A listening socket, and the links that came in.

    Of those whose peer is not certain, the oldest makes room where there are too many. Each peer
    keeps its last link only.
    """

    error = None  # as of an `OutgoingLink`

    def __init__(
        self,
        sock: socket.socket,
        loop: EventLoop,
        take: Callable[[Link, bytes], str],
        say_first: Callable[[], bytes],
        max_line: int = MAX_MEMBER_LINE,
    ) -> None:
        """Listen; `say_first` returns what to say to a peer that has become known."""
        self._links: List[Link] = []  # the oldest first
        self._socket = sock
        self._loop = loop
        self._take = take
        self._say_first = say_first
        self._max_line = max_line
        sock.setblocking(False)
        sock.listen(BACKLOG)
        loop.add_reader(sock.fileno(), self._accept)

    def tick(self) -> None:
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
        deadline = time.monotonic() + linger_s
        self.tick()
        for link in self._links:
            link.close(deadline if link.peer else 0.0)
        self._links = []

    def _accept(self) -> None:
        connection = self._loop.accept(self._socket)
        if connection is None:
            return
        link = Link(connection, self._loop, self._max_line, self._take_line, self._drop_if_useless)
        self._links.append(link)
        unknown = [link for link in self._links if not link.peer]
        if len(unknown) > MAX_UNKNOWN:
            self._drop(unknown[0])

    def _take_line(self, link: Link, line: bytes) -> str:
        peer = self._take(link, line)
        if peer and not link.peer:
            for other in [each for each in self._links if each.peer == peer]:
                self._drop(other)
            link.send(self._say_first())
        return peer

    def _drop_if_useless(self, link: Link) -> None:
        if link.error is not None:
            self._drop(link)

    def _drop(self, link: Link) -> None:
        self._links.remove(link)
        link.close()


def hear_commands(
    sock: socket.socket, loop: EventLoop, on_command: Callable[[Dict[str, Any]], Dict[str, Any]]
) -> Listener:
    """Take commands of this user's agents on the socket of a run, as lines of JSON.

    `on_command` returns what to answer, if anything.
    """

    def take(link: Link, line: bytes) -> str:
        if run_owner.peer_uid(link.socket) != os.getuid():
            raise ValueError("it is another user's")
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a malformed one
            if answer := on_command(json.loads(line)):
                link.send(json.dumps(answer).encode() + b"\n")
        return str(id(link))  # none takes the place of another

    return Listener(sock, loop, take, say_first=bytes, max_line=MAX_LINE)


class OutgoingLink:
    """The link to one listener, opened again whenever it ends or nothing is heard over it."""

    def __init__(
        self,
        address: Tuple[str, int],
        loop: EventLoop,
        silence_s: float,
        say_first: Callable[[], bytes],
        take: Callable[[Link, bytes], str],
    ) -> None:
        self.error: Exception = _no_answer()
        """Why nothing is heard."""
        self._address = address
        self._loop = loop
        self._silence_s = silence_s
        self._say_first = say_first
        self._take = take
        self._link: Optional[Link] = None
        self._next_try_at = 0.0

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
            link.error = _no_answer()
        self._give_up_if_useless(link)

    def send(self, line: bytes) -> None:
        """Send a line, if there is a link; a new one begins with its own."""
        if self._link is not None:
            self._link.send(line)

    def close(self, linger_s: float = 0.0) -> None:
        """Close the link once what was sent was read; open one for that, if there is time."""
        if self._link is None and linger_s:
            self._open()
        if self._link is not None:
            self._link.close(time.monotonic() + linger_s)
            self._link = None

    def _open(self) -> None:
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
        connection.setblocking(False)
        error_number = connection.connect_ex(address)
        link = Link(connection, self._loop, MAX_LINE, self._take, self._give_up_if_useless)
        if error_number not in (0, errno.EINPROGRESS):
            link.error = OSError(error_number, os.strerror(error_number))
        self._link = link
        link.send(self._say_first())
        self._give_up_if_useless(link)

    def _give_up_if_useless(self, link: Link) -> None:
        if link.peer:
            self.error = _no_answer()
        if link.error is not None and link is self._link:
            link.close()
            self._link = None
            self._retry_later(link.error)

    def _retry_later(self, error: Exception) -> None:
        self.error = error
        self._next_try_at = time.monotonic() + RETRY_PAUSE_S


def _no_answer() -> Exception:
    return TimeoutError(errno.ETIMEDOUT, "it does not answer")
