"""The SSH protocol of paramiko, quieter and faster, with exact reasons for refused channels.

Below it is the byte stream: a TCP connection, or the pipes of a ProxyCommand.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

import paramiko

for _name in ("paramiko", "fabric", "invoke"):
    # Without a handler, logging's last resort prints tracebacks, as do handlers of the root.
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False

_RSA = ("rsa-sha2-512", "rsa-sha2-256")

BUFFER_SIZE = 1 << 16
READ_SIZE = 1 << 18
WRITE_SIZE = 1 << 15
READ_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 1.0
TERM_TIMEOUT_S = 0.5
KILL_TIMEOUT_S = 5.0
"""Time for a ProxyCommand to end after SIGTERM, and after SIGKILL."""
TCP_USER_TIMEOUT_MS = 120_000


def resolve(host: str, port: int) -> list[Any]:
    """Return the addresses of a host; may block as long as the name server does."""
    return socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)


class _BufferedSocket(socket.socket):
    """A TCP socket of one reader that asks for a few bytes at a time, as paramiko does."""

    _unread = memoryview(b"")

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return up to `size` bytes, of more that came with them."""
        if not self._unread:
            data = super().recv(max(size, BUFFER_SIZE), flags)
            if len(data) <= size:
                return data
            self._unread = memoryview(data)
        part, self._unread = self._unread[:size], self._unread[size:]
        return bytes(part)


def connect(addresses: list[Any], timeout: float) -> socket.socket:
    """Connect to the first address that answers, within `timeout` seconds in all.

    Of several errors a refusal is raised rather than a timeout, and that rather than the rest.
    """
    deadline = time.monotonic() + timeout
    errors: list[OSError] = []
    for position, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = _BufferedSocket(family, kind, protocol)
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

    def ending(self) -> tuple[int | None, list[str]]:
        """Return the exit code, None if it runs on, and the lines of the standard error."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(TERM_TIMEOUT_S)
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        return self._process.returncode, [line.strip() for line in lines if line.strip()]

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


class SshProtocol(paramiko.Transport):  # type: ignore[misc]  # paramiko has no types
    """Paramiko's transport, but each refused channel reports its own reason.

    Paramiko keeps one exception per connection, for which threads race, and drops the server's
    text: "Connection refused" and "Name or service not known" become "Connect failed".
    """

    last_line = ""  # before the key exchange: the SSH banner, or why there is none

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._per_thread = threading.local()
        self._refusals: dict[int, paramiko.ChannelException] = {}

    def run(self) -> None:
        """Serve the connection; at its end, the one to a jump host that carries it may be dead."""
        with contextlib.suppress(EOFError):
            super().run()

    def get_exception(self) -> Any:
        """Return the refusal of the channel that this thread requested, else the last exception."""
        refusal = self._refusals.pop(getattr(self._per_thread, "channel", -1), None)
        return refusal or super().get_exception()

    def _check_banner(self) -> None:
        readline = self.packetizer.readline

        def remember(timeout: float) -> str:
            self.last_line = str(readline(timeout))
            return self.last_line

        self.packetizer.readline = remember
        super()._check_banner()

    def _next_channel(self) -> int:
        self._per_thread.channel = super()._next_channel()
        return int(self._per_thread.channel)

    def _parse_channel_open_failure(self, message: Any) -> None:
        channel, code, reason = message.get_int(), message.get_int(), message.get_text()
        self._refusals[channel] = paramiko.ChannelException(code, reason)
        message.rewind()
        super()._parse_channel_open_failure(message)


def make_transport(sock: Any, key_types: Sequence[str], timeout: float) -> SshProtocol:
    """Make the SSH protocol over a socket; the known host `key_types` are requested first.

    `timeout` is that of the banner, in seconds; later steps have deadlines elsewhere.
    """
    transport = SshProtocol(sock)
    options = transport.get_security_options()
    # 300 MB/s instead of 200 with AES-CTR and its separate MAC, for half the CPU time.
    options.ciphers = sorted(options.ciphers, key=lambda cipher: "gcm" not in cipher)
    known = [name for kind in key_types for name in (_RSA if kind == "ssh-rsa" else (kind,))]
    usable = (kind for kind in known if kind in options.key_types)
    options.key_types = tuple(dict.fromkeys([*usable, *options.key_types]))
    transport.banner_timeout = timeout
    transport.handshake_timeout = transport.auth_timeout = 3 * timeout
    transport.channel_timeout = timeout
    return transport


def wait_without_polling(transport: SshProtocol) -> None:
    """Have the reading thread of an open connection wait for what comes.

    Paramiko's wakes up ten times a second to look whether it was closed: with 512 connections that
    is half a core. `close_transport` wakes it.
    """
    transport.sock.settimeout(READ_TIMEOUT_S)


def close_transport(transport: SshProtocol) -> None:
    """Close a connection, and its handshake timer, which would keep this process alive."""
    if isinstance(transport.sock, socket.socket):
        with contextlib.suppress(OSError):  # the other side was quicker
            transport.sock.shutdown(socket.SHUT_RDWR)
    transport.close()
    transport.packetizer.complete_handshake()


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

    def abandon(self) -> None:
        """End the whole connection, which may block as well."""
        with self._lock:
            self._closed = True
        closer = threading.Thread(target=self._close_connection, daemon=True)
        closer.start()
        closer.join(CLOSE_TIMEOUT_S)

    def _send_close(self) -> None:
        try:
            self._channel.close()
        except (paramiko.SSHException, EOFError, OSError):
            self._close_connection()
