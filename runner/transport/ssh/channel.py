"""The SSH channel: the streams of one program at the other end of a connection."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import paramiko

READ_SIZE = 1 << 18
WRITE_SIZE = 1 << 15
CLOSE_TIMEOUT_S = 1.0


class SshChannel:
    """A Channel over a channel of paramiko's."""

    def __init__(self, channel: Any, close_connection: Callable[[], None]) -> None:
        self._channel = channel
        self._close_connection = close_connection
        self._lock = threading.Lock()
        self._closed = False

    def recv(self) -> bytes:
        """Return the next bytes, b"" at the end."""
        try:
            return bytes(self._channel.recv(READ_SIZE))
        except (paramiko.SSHException, EOFError, OSError):
            return b""

    def send(self, data: bytes) -> None:
        """Pass on all of `data`; raise OSError when the other side is gone."""
        sent = 0
        try:
            while sent < len(data):
                sent += self._channel.send(data[sent : sent + WRITE_SIZE])
        except (paramiko.SSHException, EOFError) as error:
            raise BrokenPipeError(f"the ssh connection was lost ({error})") from None

    def close(self) -> None:
        """End the program's streams.

        The message may block on an unresponsive machine; then the whole connection is closed.
        """
        with self._lock:
            is_first, self._closed = not self._closed, True
        if not is_first:
            return
        closer = threading.Thread(target=self._send_close, daemon=True)
        closer.start()
        closer.join(CLOSE_TIMEOUT_S)
        if closer.is_alive():
            self._close_connection()

    def _send_close(self) -> None:
        try:
            self._channel.close()
        except (paramiko.SSHException, EOFError, OSError):
            self._close_connection()
