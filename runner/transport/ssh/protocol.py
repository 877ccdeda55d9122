"""What we change about paramiko: quieter, quicker, and plain about refusals."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import paramiko

for _name in ("paramiko", "fabric", "invoke"):
    # Without a handler, logging's last resort prints tracebacks; so do the handlers of the root.
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False

_RSA = ("rsa-sha2-512", "rsa-sha2-256")


class Protocol(paramiko.Transport):  # type: ignore[misc]  # paramiko has no types
    """Paramiko's transport, but whoever opens a channel learns why just that one was refused.

    Paramiko keeps one exception per connection, for which threads race, and drops the server's
    own words: "Connection refused" and "Name or service not known" become "Connect failed".
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._opener = threading.local()
        self._refusals: dict[int, paramiko.ChannelException] = {}

    def get_exception(self) -> Any:
        """Return the refusal of the channel this thread has asked for, else the last exception."""
        refusal = self._refusals.pop(getattr(self._opener, "channel", -1), None)
        return refusal or super().get_exception()

    def _next_channel(self) -> int:
        self._opener.channel = super()._next_channel()
        return int(self._opener.channel)

    def _parse_channel_open_failure(self, message: Any) -> None:
        channel, code, words = message.get_int(), message.get_int(), message.get_text()
        self._refusals[channel] = paramiko.ChannelException(code, words)
        message.rewind()
        super()._parse_channel_open_failure(message)


def start(
    sock: Any,
    *,
    key_types: Sequence[str],
    timeout: float,
) -> Protocol:
    """Make the SSH protocol over a socket.

    Args:
        sock: The socket.
        key_types: The host key types to ask for first: those we know of the host.
        timeout: Seconds to wait for the banner; what comes after has deadlines elsewhere.
    """
    protocol = Protocol(sock)
    options = protocol.get_security_options()
    # 300 against 200 MB/s of AES-CTR with its separate MAC, for half the processor time.
    options.ciphers = _first([c for c in options.ciphers if "gcm" in c], options.ciphers)
    wanted = [name for kind in key_types for name in (_RSA if kind == "ssh-rsa" else (kind,))]
    options.key_types = _first([w for w in wanted if w in options.key_types], options.key_types)
    protocol.banner_timeout = timeout
    protocol.handshake_timeout = protocol.auth_timeout = 3 * timeout
    protocol.channel_timeout = timeout
    return protocol


def end(protocol: Protocol) -> None:
    """Close a connection, and the timer that would keep this process alive for its handshake."""
    protocol.close()
    protocol.packetizer.complete_handshake()


def _first(preferred: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*preferred, *known]))
