"""TCP dialler: connects to a numeric address without blocking, within a time limit."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from typing import Optional


class Dialler:
    """One attempt to connect; once it failed, `error` is an errno, and `reason` its words."""

    def __init__(self, addr: str, port: int, timeout_s: float) -> None:
        self.error = 0
        self.reason = ""
        self._deadline = time.monotonic() + timeout_s
        self._socket: Optional[socket.socket] = None
        family = socket.AF_INET6 if ":" in addr else socket.AF_INET
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            # Numeric, since a resolver may take half a minute.
            flags = socket.AI_NUMERICHOST
            address = socket.getaddrinfo(addr, port, 0, socket.SOCK_STREAM, flags=flags)[0][4]
            error = self._socket.connect_ex(address)
        except OSError as failure:  # no address, or no descriptor is left
            self._fail(errno.EHOSTUNREACH, str(failure.strerror or failure))
            return
        if error not in (0, errno.EINPROGRESS):
            self._fail(error)

    def fileno(self) -> int:
        """Return the descriptor to watch for writing, -1 for none."""
        return self._socket.fileno() if self._socket is not None else -1

    def poll(self) -> Optional[socket.socket]:
        """Return the connected socket, None while there is none (see `error`); never wait."""
        if self.error or self._socket is None:
            return None
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        if poll.poll(0):
            error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not error:
                return self._socket
            self._fail(error)
        elif time.monotonic() > self._deadline:
            self._fail(errno.ETIMEDOUT, "it does not answer")
        return None

    def close(self) -> None:
        """Give up."""
        if self._socket is not None:
            self._socket.close()

    def _fail(self, error: int, reason: str = "") -> None:
        self.error = error
        self.reason = reason or os.strerror(error)
        self.close()
