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
        family = socket.AF_INET6 if ":" in addr else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        try:
            # Numeric, since a resolver may take half a minute.
            flags = socket.AI_NUMERICHOST
            address = socket.getaddrinfo(addr, port, 0, socket.SOCK_STREAM, flags=flags)[0][4]
            error = self._socket.connect_ex(address)
        except OSError as failure:  # not an address
            self._fail(errno.EHOSTUNREACH, str(failure.strerror or failure))
            return
        if error not in (0, errno.EINPROGRESS):
            self._fail(error)

    def fileno(self) -> int:
        """Return the descriptor to watch for writing."""
        return self._socket.fileno()

    def poll(self) -> Optional[socket.socket]:
        """Return the connected socket, None while there is none (see `error`); never wait."""
        if self.error:
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
        self._socket.close()

    def _fail(self, error: int, reason: str = "") -> None:
        self.error = error
        self.reason = reason or os.strerror(error)
        self._socket.close()


class RetryingDialler:
    """Repeated attempts to connect, with pauses that double from `pause_s` to `max_pause_s`."""

    def __init__(self, addr: str, port: int, pause_s: float, max_pause_s: float) -> None:
        self._addr = addr
        self._port = port
        self._first_pause_s = pause_s
        self._max_pause_s = max_pause_s
        self._pause_s = pause_s
        self._next_at = 0.0
        self._attempt: Optional[Dialler] = None

    def poll(self, timeout_s: float) -> Optional[socket.socket]:
        """Return a connected socket, None while there is none; never wait.

        OSError: an attempt failed. Unless `pause` is called, the next poll starts another.
        """
        if self._attempt is None:
            if time.monotonic() < self._next_at:
                return None
            self._attempt = Dialler(self._addr, self._port, timeout_s)
        attempt = self._attempt
        connection = self._attempt.poll()
        if attempt.error:
            self._attempt = None
            raise OSError(attempt.error, attempt.reason)
        if connection is not None:
            self._attempt = None
        return connection

    def pause(self) -> None:
        """Give up this attempt, and wait before the next one."""
        self.close()
        self._next_at = time.monotonic() + self._pause_s
        self._pause_s = min(self._max_pause_s, 2 * self._pause_s)

    def reset(self) -> None:
        """Start at once with the next attempt, and with the first pause after it."""
        self._pause_s = self._first_pause_s
        self._next_at = 0.0

    def close(self) -> None:
        """Give up this attempt."""
        if self._attempt is not None:
            self._attempt.close()
            self._attempt = None
