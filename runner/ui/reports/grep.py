"""Only the lines that match, of output that comes in pieces."""

from __future__ import annotations

import re
from collections.abc import Callable

OutputSink = Callable[[str, int, str, bytes], None]
"""Takes (node, rank, stream, bytes)."""


class GrepFilter:
    """Passes on the whole lines of every rank that match a pattern.

    Attributes:
        has_match: Whether any did.
    """

    def __init__(self, pattern: re.Pattern[bytes], sink: OutputSink) -> None:
        self.has_match = False
        self._pattern, self._sink = pattern, sink
        self._partial_lines: dict[tuple[str, int, str], bytes] = {}

    def feed(self, node: str, rank: int, stream: str, data: bytes) -> None:
        """Take the next piece."""
        *lines, rest = (self._partial_lines.get((node, rank, stream), b"") + data).split(b"\n")
        self._partial_lines[node, rank, stream] = rest
        matching = b"".join(line + b"\n" for line in lines if self._pattern.search(line))
        if matching:
            self.has_match = True
            self._sink(node, rank, stream, matching)

    def finish(self) -> None:
        """Take what has no end for a line."""
        for key, rest in self._partial_lines.items():
            if rest and self._pattern.search(rest):
                self.has_match = True
                self._sink(*key, rest + b"\n")
        self._partial_lines.clear()
