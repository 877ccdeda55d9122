"""One connection between two supervisors: lines of JSON, each proven by the run's token.

Both sides say who they are and a nonce; HMAC over the two with the token gives the key of this one
conversation, and every later line carries a counted HMAC of it (RFC 2104). The token came over SSH
and is nowhere on a disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import select
import socket
import time
from typing import Any, Dict, List

MAX_LINE = 8 << 10
MAX_HELLO = 1 << 10
"""Of those who have proven nothing, a line may be so long."""
MAX_UNSENT = 64 << 10
HELLO = re.compile(rb'\{"node": ("[^"\\\\]{1,255}"), "nonce": "[0-9a-f]{32}"\}')
CLIENT, SERVER = b"c", b"s"


class PeerDisconnected(Exception):
    """The other side closed the connection, or is none of ours."""


class PeerConnection:
    """The other end of one connection.

    Attributes:
        name: Its node; "" until it has proven to know the token.
        last_heard: When it last said anything proven, or was connected.
        connected_at: When it was connected.
    """

    def __init__(
        self,
        connection: socket.socket,
        token: bytes,
        subject: str,
        node: str,
        role: bytes,
        max_line: int = MAX_LINE,
    ) -> None:
        """Greet the other side.

        Args:
            connection: A stream socket, connected.
            token: The secret that both know.
            subject: What the conversation is about; it has to be the same at both ends.
            node: Our own node.
            role: `CLIENT` or `SERVER`, whichever we are.
            max_line: How long a proven line may be, in bytes.
        """
        connection.setblocking(False)
        self.name = ""
        self.last_heard = self.connected_at = time.monotonic()
        self._connection = connection
        self._token, self._subject, self._role = token, subject, role
        self._max_line = max_line
        self._key = b""
        self._claimed_name = ""
        self._sent_count = self._received_count = 0
        self._pending: List[bytes] = []
        self._unread = b""
        self._hello = json.dumps({"node": node, "nonce": os.urandom(16).hex()}).encode()
        self._unsent = self._hello + b"\n"
        self.flush()

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._connection.fileno()

    def send(self, **message: Any) -> None:
        """Send a message as soon as that can be proven."""
        body = json.dumps(message, separators=(",", ":")).encode()
        if self._key:
            self._send_signed(body)
        else:
            self._pending.append(body)

    def receive(self) -> List[Dict[str, Any]]:
        """Return the messages that came.

        Raises:
            PeerDisconnected: There will be no others.
        """
        try:
            chunk = self._connection.recv(65536)
        except BlockingIOError:
            return []
        except OSError as error:
            raise PeerDisconnected(error.strerror) from error
        if not chunk:
            raise PeerDisconnected("it closed the connection")
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        max_line = self._max_line if self.name else MAX_HELLO
        if any(len(line) > max_line for line in (*lines, self._unread)):
            raise PeerDisconnected("it sent a line without an end")
        return [message for line in lines for message in self._parse_line(line)]

    def flush(self) -> None:
        """Send what the other side takes now."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._connection.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""  # reading says so

    @property
    def flushed(self) -> bool:
        """Whether all that was said is on its way."""
        return bool(self._key) and not self._unsent

    def close(self, linger_s: float = 0.0) -> None:
        """End the connection; for `linger_s` at most, wait until the other side has read it all.

        Closed with something unread, the kernel would reset it, and the last words might be lost.
        """
        self.flush()
        deadline = time.monotonic() + linger_s
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            while (remaining_s := deadline - time.monotonic()) > 0:
                readable = select.select([self._connection], [], [], remaining_s)[0]
                if readable and not self._connection.recv(65536):
                    break
        self._connection.close()

    def _parse_line(self, line: bytes) -> List[Dict[str, Any]]:
        try:
            if not self._key:
                self._handshake(line)
                return []
            mac, _, body = line.partition(b" ")
            peer_role = SERVER if self._role == CLIENT else CLIENT
            if not hmac.compare_digest(mac, self._mac(peer_role, self._received_count, body)):
                raise PeerDisconnected("it does not know the run's token")
            message = json.loads(body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise PeerDisconnected(f"it sent what is no message: {error}") from error
        self._received_count += 1
        self.name, self.last_heard = self._claimed_name, time.monotonic()
        return [message]

    def _handshake(self, line: bytes) -> None:
        hello = HELLO.fullmatch(line)
        if hello is None:
            raise ValueError("no greeting")
        self._claimed_name = json.loads(hello[1])
        hellos = (self._hello, line) if self._role == CLIENT else (line, self._hello)
        key_material = b"\0".join((self._subject.encode(), *hellos))
        self._key = hmac.new(self._token, key_material, hashlib.sha256).digest()
        pending, self._pending = self._pending, []
        for body in pending:
            self._send_signed(body)

    def _send_signed(self, body: bytes) -> None:
        if len(self._unsent) > MAX_UNSENT:
            return  # it takes nothing: its silence will be noticed
        self._unsent += self._mac(self._role, self._sent_count, body) + b" " + body + b"\n"
        self._sent_count += 1
        self.flush()

    def _mac(self, role: bytes, counter: int, body: bytes) -> bytes:
        signed = role + str(counter).encode() + b" " + body
        return hmac.new(self._key, signed, hashlib.sha256).hexdigest().encode()
