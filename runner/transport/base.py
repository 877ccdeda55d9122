"""The seam: a transport opens channels, a channel carries bytes."""

from __future__ import annotations

from typing import Protocol

from runner.core.model.spec import Node


class Channel(Protocol):
    """The standard streams of one program on a machine.

    1. `recv` blocks until bytes come; b"" means the program or the connection
       ended, and comes again at every further call.
    2. `send` blocks until the bytes are handed on; raises OSError when the other side is gone.
    3. `close` ends both from any thread, may be called twice, and never blocks for long.
    """

    def recv(self) -> bytes:
        """Return the next bytes."""
        ...

    def send(self, data: bytes) -> None:
        """Hand on all of `data`."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Transport(Protocol):
    """A way to reach machines.

    1. `open` runs a POSIX shell command line on the node and returns its streams, standard error
       merged into standard output; it raises NotReady, naming the node, within a bounded time.
    2. It may be called from many threads at once.
    3. `close` ends every connection; channels still open see their end.
    """

    def open(self, node: Node, command: str) -> Channel:
        """Run a shell command line on a node."""
        ...

    def close(self) -> None:
        """End it."""
        ...
