"""The bytes below SSH: a TCP connection, or the pipes of a ProxyCommand."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from typing import IO, Any

END_S = 0.5
KILLED_S = 5.0
"""How long a ProxyCommand may take to end after SIGTERM, and after SIGKILL."""
DEAD_S = 120


def look_up(host: str, port: int) -> list[Any]:
    """Return the addresses of a host; blocks as long as the name server pleases."""
    return socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)


def connect(addresses: list[Any], timeout: float) -> socket.socket:
    """Connect to the first address that answers, within `timeout` seconds in all.

    Raises:
        OSError: None answered; a refusal is reported before a time-out before the rest.
    """
    end = time.monotonic() + timeout
    errors: list[OSError] = []
    for position, (family, kind, protocol, _, address) in enumerate(addresses):
        link = socket.socket(family, kind, protocol)
        try:
            left = (end - time.monotonic()) / (len(addresses) - position)
            link.settimeout(max(left, 0.01))
            link.connect(address)
            _tune(link)
        except OSError as error:
            link.close()
            errors.append(error)
        else:
            return link
    raise min(errors, key=_how_vague)


def _tune(link: socket.socket) -> None:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Else Linux needs 15 minutes to see that nobody acknowledges any more.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(DEAD_S * 1000))


def _how_vague(error: OSError) -> int:
    if isinstance(error, ConnectionRefusedError):
        return 0
    return 1 if isinstance(error, TimeoutError) else 2


class Proxy:
    """A ProxyCommand, its standard streams joined to a socket of ours.

    Not paramiko's: that one never notices the end of the command, and leaves a zombie.
    """

    def __init__(self, command: str) -> None:
        self._closed = False
        self.socket, theirs = socket.socketpair()
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._said,
                start_new_session=True,
            )

    def said(self) -> str:
        """Return the last line of the command's standard error."""
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").split("\n")
        return next((each.strip() for each in reversed(lines) if each.strip()), "")

    def close(self) -> None:
        """End the command; twice is once."""
        if self._closed:
            return
        self._closed = True
        self.socket.close()
        for number, patience in ((signal.SIGTERM, END_S), (signal.SIGKILL, KILLED_S)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
                break
        self._said.close()
