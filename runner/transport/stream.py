"""TCP connection to a machine, as `ssh` makes it."""

from __future__ import annotations

import errno
import queue
import socket
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.transport.endpoint import Endpoint

BUFFER_SIZE = 1 << 16
TCP_USER_TIMEOUT_MS = 120_000
"""Without it, Linux needs 15 minutes to give up a connection that nobody acknowledges."""


class BufferedSocket(socket.socket):
    """One whose reader asks for a few bytes at a time, as paramiko does."""

    _unread = memoryview(b"")

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return up to `size` bytes, of more that came with them."""
        if not self._unread:
            self._unread = memoryview(super().recv(BUFFER_SIZE, flags))
        part = self._unread[:size]
        self._unread = self._unread[size:]
        return bytes(part)


def dial(endpoint: Endpoint, timeout_s: float) -> socket.socket:
    """Connect to the first address that answers, within `timeout_s` for each step; raise OSError.

    Of several errors a refusal is raised rather than that nobody answered.
    """
    errors: list[OSError] = []
    addresses = _look_up(endpoint, timeout_s)
    source = (endpoint.first("bindaddress"), 0)
    for family, kind, protocol, _, address in addresses:
        sock = BufferedSocket(family, kind, protocol)
        try:
            sock.settimeout(timeout_s / len(addresses))
            if source[0]:
                sock.bind(source)
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)
        except OSError as error:
            sock.close()
            errors.append(error)
        else:
            return sock
    raise min(errors, key=lambda error: not isinstance(error, ConnectionRefusedError))


def _look_up(endpoint: Endpoint, timeout_s: float) -> list[Any]:
    """Return the addresses of a host; a look-up that hangs cannot be ended, and is left behind."""
    families = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
    family = families.get(endpoint.first("addressfamily"), socket.AF_UNSPEC)
    answers: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(
                socket.getaddrinfo(endpoint.host, endpoint.port, family, socket.SOCK_STREAM)
            )
        except OSError as error:
            answers.put(error)

    threading.Thread(target=look_up, daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_s)
    except queue.Empty:
        answer = OSError(errno.EHOSTUNREACH, f"could not resolve its name within {timeout_s:g} s")
    if isinstance(answer, OSError):
        raise answer
    return answer
