"""Byte streams to a machine: a TCP connection as `ssh` makes it, or the pipes of a ProxyCommand."""

from __future__ import annotations

import errno
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.transport.process import end_process, said_in

if TYPE_CHECKING:
    from runner.transport.endpoint import Endpoint

BUFFER_SIZE = 1 << 16
TCP_USER_TIMEOUT_MS = 120_000
"""Without it, Linux needs 15 minutes to give up a connection that nobody acknowledges."""


class ProxyCommand:
    """A ProxyCommand with its streams joined to a socket: of paramiko's own the end is missed."""

    def __init__(self, command: str) -> None:
        self.socket, child_end = socket.socketpair()
        self._stderr = tempfile.NamedTemporaryFile()  # noqa: SIM115 - closed in close()
        with child_end:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=child_end.fileno(),
                stdout=child_end.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )

    def said(self) -> list[str]:
        """Return the lines of its standard error."""
        return said_in(Path(self._stderr.name))

    def close(self) -> None:
        """End it; may be called twice."""
        self.socket.close()
        end_process(self._process)
        self._stderr.close()


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
    addresses = lookup(endpoint, timeout_s)
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


def lookup(endpoint: Endpoint, timeout_s: float) -> list[Any]:
    """Return the addresses of a host; a look-up that hangs cannot be ended, and is left behind."""
    families = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
    family = families.get(endpoint.first("addressfamily"), socket.AF_UNSPEC)
    found: list[Any] = []
    errors: list[OSError] = []

    def look_up() -> None:
        try:
            found.extend(
                socket.getaddrinfo(endpoint.host, endpoint.port, family, socket.SOCK_STREAM)
            )
        except OSError as error:
            errors.append(error)

    looking = threading.Thread(target=look_up, daemon=True)
    looking.start()
    looking.join(timeout_s)
    if errors:
        raise errors[0]
    if not found:
        raise OSError(errno.EHOSTUNREACH, f"could not resolve its name within {timeout_s:g} s")
    return found
