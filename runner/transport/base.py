"""Seam of a transport: a connection to one machine, and the streams of the program on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runner.core.spec import Node

READ_SIZE = 1 << 18


@dataclass(frozen=True)
class Ending:
    """How a program on a machine ended, or why the connection to it did."""

    status: int | None  # its exit code; None where the connection went first
    reason: str

    @classmethod
    def of_status(cls, status: int) -> Ending:
        """Return the end of a program by its exit code, or by the negative number of a signal."""
        if status < 0:
            return cls(None, f"the program was ended by signal {-status}")
        return cls(status, f"the program ended with exit code {status}")


class Channel(Protocol):
    """The standard streams of one program on a machine, its standard error among its output."""

    ended: Ending | None
    """Known from when `read` has returned b""."""

    def read(self) -> bytes:
        """Return the next bytes; block until some come. b"" is the end, and comes again."""

    def write(self, data: bytes) -> None:
        """Pass on all of `data`; block until that is done. Raise OSError when nobody reads it."""

    def close(self) -> None:
        """End the streams from any thread, within a bounded time; may be called twice."""


class Connection(Protocol):
    """A login on one machine."""

    def start(self, words: Sequence[str]) -> Channel:
        """Start a program; raise LoginFailed if it cannot be started within a bounded time."""

    def close(self) -> None:
        """End the connection and its channels from any thread, within a bounded time."""


class Transport(Protocol):
    """A way to reach machines; may be used from many threads at once."""

    def connect(self, node: Node) -> Connection:
        """Log in within a bounded time; raise LoginFailed."""

    def close(self) -> None:
        """End what its connections share; they must be closed as well."""
