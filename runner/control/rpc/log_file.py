"""Log file on a host: read by offset, one request at a time, live or as it is now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from runner.control.rpc.session import HostSession
from runner.core.protocol.remote_files import CHUNK


@dataclass
class LogFile:
    """One file of one node in one attempt.

    Attributes:
        source: The rank or program it belongs to, or "events".
        stream: out, err, or "" for events.
        attempt: The attempt.
        offset: Where the next chunk begins.
        is_started: Whether a first chunk came.
        is_complete: Whether all of it came.
    """

    source: str
    stream: str
    attempt: int
    offset: int = 0
    is_started: bool = False
    is_complete: bool = False

    def request(
        self,
        session: HostSession,
        start_at: Mapping[str, float] = MappingProxyType({}),
        *,
        wait: bool = True,
    ) -> int:
        """Request the next chunk; return the request's id.

        Args:
            session: The node.
            start_at: Where to begin: `tail` lines before the end, or `since` that many seconds.
            wait: Whether the host waits for more at the end of a file that may still grow.
        """
        source = {"source": self.source, "stream": self.stream, "attempt": self.attempt}
        options = {**({} if wait else {"wait": False}), **({} if self.is_started else start_at)}
        return session.request("read", {**source, "offset": self.offset, "n": CHUNK, **options})

    def on_chunk(self, offset: int, size: int, *, eof: bool) -> None:
        """Note a chunk that came."""
        self.offset = offset + size
        self.is_started, self.is_complete = True, eof
