"""The byte stream below SSH: a TCP connection, or the pipes of a ProxyCommand."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from typing import IO, Any

TERM_TIMEOUT_S = 0.5
KILL_TIMEOUT_S = 5.0
"""Time for a ProxyCommand to end after SIGTERM, and after SIGKILL."""
TCP_USER_TIMEOUT_MS = 120_000


def resolve(host: str, port: int) -> list[Any]:
    """Return the addresses of a host; may block as long as the name server does."""
    return socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)


def connect(addresses: list[Any], timeout: float) -> socket.socket:
    """Connect to the first address that answers, within `timeout` seconds in all.

    Of several errors a refusal is raised rather than a timeout, and that rather than the rest.
    """
    deadline = time.monotonic() + timeout
    errors: list[OSError] = []
    for position, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = socket.socket(family, kind, protocol)
        try:
            timeout_s = (deadline - time.monotonic()) / (len(addresses) - position)
            sock.settimeout(max(timeout_s, 0.01))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # Without it, Linux needs 15 minutes to give up an unacknowledged connection.
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)
        except OSError as error:
            sock.close()
            errors.append(error)
        else:
            return sock
    preferred = (ConnectionRefusedError, TimeoutError)
    raise min(errors, key=lambda error: [not isinstance(error, kind) for kind in preferred])


class ProxyCommand:
    """A ProxyCommand, with its standard streams connected to a socket.

    Paramiko's own never notices the end of the command, and leaves a zombie.
    """

    def __init__(self, command: str) -> None:
        self._closed = False
        self.socket, child_end = socket.socketpair()
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        with child_end:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=child_end.fileno(),
                stdout=child_end.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )

    def last_error_line(self) -> str:
        """Return the last line of the command's standard error."""
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """End the command; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self.socket.close()
        ladder = ((signal.SIGTERM, TERM_TIMEOUT_S), (signal.SIGKILL, KILL_TIMEOUT_S))
        for signum, timeout_s in ladder:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signum)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
                break
        self._stderr.close()
