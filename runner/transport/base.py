"""Interfaces of a transport, which opens channels, and of a channel, which carries bytes."""

from __future__ import annotations

from typing import Protocol

from runner.core.spec import Node


class Channel(Protocol):
    """The standard streams of one program on a machine.

    1. `recv` blocks until bytes come; b"" means that the program or the connection has ended, and
       every further call returns it again.
    2. `send` blocks until the bytes are passed on; raises OSError when the other side is gone.
    3. `close` ends both from any thread, may be called twice, and never blocks for long.
    4. `abandon` does so where the other side is silent, and ends the connection below, too: the
       next channel comes over a new one.
    """

    def recv(self) -> bytes:
        """Return the next bytes."""

    def send(self, data: bytes) -> None:
        """Pass on all of `data`."""

    def close(self) -> None:
        """End the program's streams."""

    def abandon(self) -> None:
        """End them, with the connection that carries them."""


class Transport(Protocol):
    """A way to reach machines.

    1. `open` runs a POSIX shell command line on the node and returns its streams, standard error
       merged into standard output; it raises NotReady, naming the node, within a bounded time.
    2. It may be called from many threads at once.
    3. `close` ends every connection; channels still open see their end.
    """

    def open(self, node: Node, command: str) -> Channel:
        """Run a shell command line on a node."""

    def close(self) -> None:
        """End every connection."""
