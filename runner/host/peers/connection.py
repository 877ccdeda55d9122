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


class PeerGone(Exception):
    """The other side closed the connection, or is none of ours."""


class Peer:
    """The other end of one connection.

    Attributes:
        name: Its node; "" until it has proven to know the token.
        heard: When it last said anything proven, or was connected.
        since: When it was connected.
    """

    def __init__(
        self,
        connection: socket.socket,
        token: bytes,
        subject: str,
        node: str,
        role: bytes,
        most: int = MAX_LINE,
    ) -> None:
        """Greet the other side.

        Args:
            connection: A stream socket, connected.
            token: The secret that both know.
            subject: What the conversation is about; it has to be the same at both ends.
            node: Our own node.
            role: `CLIENT` or `SERVER`, whichever we are.
            most: How long a proven line may be, in bytes.
        """
        connection.setblocking(False)
        self.name = ""
        self.heard = self.since = time.monotonic()
        self._connection = connection
        self._token, self._subject, self._role = token, subject, role
        self._most = most
        self._key = b""
        self._claimed = ""
        self._sent = self._received = 0
        self._waiting: List[bytes] = []
        self._unread = b""
        self._hello = json.dumps({"node": node, "nonce": os.urandom(16).hex()}).encode()
        self._unsent = self._hello + b"\n"
        self.flush()

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._connection.fileno()

    def say(self, **words: Any) -> None:
        """Send a message as soon as that can be proven."""
        body = json.dumps(words, separators=(",", ":")).encode()
        if self._key:
            self._send(body)
        else:
            self._waiting.append(body)

    def hear(self) -> List[Dict[str, Any]]:
        """Return the messages that came.

        Raises:
            PeerGone: There will be no others.
        """
        try:
            chunk = self._connection.recv(65536)
        except BlockingIOError:
            return []
        except OSError as error:
            raise PeerGone(error.strerror) from error
        if not chunk:
            raise PeerGone("it closed the connection")
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        most = self._most if self.name else MAX_HELLO
        if any(len(line) > most for line in (*lines, self._unread)):
            raise PeerGone("it sent a line without an end")
        return [message for line in lines for message in self._understood(line)]

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
    def ready(self) -> bool:
        """Whether all that was said is on its way."""
        return bool(self._key) and not self._unsent

    def close(self, linger_s: float = 0.0) -> None:
        """End the connection; for `linger_s` at most, wait until the other side has read it all.

        Closed with something unread, the kernel would reset it, and the last words might be lost.
        """
        self.flush()
        until = time.monotonic() + linger_s
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            while (left := until - time.monotonic()) > 0:
                ready = select.select([self._connection], [], [], left)[0]
                if ready and not self._connection.recv(65536):
                    break
        self._connection.close()

    def _understood(self, line: bytes) -> List[Dict[str, Any]]:
        try:
            if not self._key:
                self._agree(line)
                return []
            proof, _, body = line.partition(b" ")
            other = SERVER if self._role == CLIENT else CLIENT
            if not hmac.compare_digest(proof, self._proof(other, self._received, body)):
                raise PeerGone("it does not know the run's token")
            message = json.loads(body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise PeerGone(f"it sent what is no message: {error}") from error
        self._received += 1
        self.name, self.heard = self._claimed, time.monotonic()
        return [message]

    def _agree(self, line: bytes) -> None:
        said = HELLO.fullmatch(line)
        if said is None:
            raise ValueError("no greeting")
        self._claimed = json.loads(said[1])
        hellos = (self._hello, line) if self._role == CLIENT else (line, self._hello)
        about = b"\0".join((self._subject.encode(), *hellos))
        self._key = hmac.new(self._token, about, hashlib.sha256).digest()
        waiting, self._waiting = self._waiting, []
        for body in waiting:
            self._send(body)

    def _send(self, body: bytes) -> None:
        if len(self._unsent) > MAX_UNSENT:
            return  # it takes nothing: its silence will be noticed
        self._unsent += self._proof(self._role, self._sent, body) + b" " + body + b"\n"
        self._sent += 1
        self.flush()

    def _proof(self, role: bytes, number: int, body: bytes) -> bytes:
        about = role + str(number).encode() + b" " + body
        return hmac.new(self._key, about, hashlib.sha256).hexdigest().encode()
