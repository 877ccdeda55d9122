"""A filter for lines of output that match a pattern."""

from __future__ import annotations

import re
from collections.abc import Callable

OutputSink = Callable[[str, int, str, bytes], None]
"""Takes (node, rank, stream, bytes)."""


class GrepFilter:
    """Passes on the whole lines of each rank that match a pattern.

    Attributes:
        has_match: Whether any line matched.
    """

    def __init__(self, pattern: re.Pattern[bytes], sink: OutputSink) -> None:
        self.has_match = False
        self._pattern, self._sink = pattern, sink
        self._partial_lines: dict[tuple[str, int, str], bytes] = {}

    def feed(self, node: str, rank: int, stream: str, data: bytes) -> None:
        """Filter the next piece of output."""
        *lines, rest = (self._partial_lines.get((node, rank, stream), b"") + data).split(b"\n")
        self._partial_lines[node, rank, stream] = rest
        matching = b"".join(line + b"\n" for line in lines if self._pattern.search(line))
        if matching:
            self.has_match = True
            self._sink(node, rank, stream, matching)

    def finish(self) -> None:
        """Filter unfinished lines."""
        for key, rest in self._partial_lines.items():
            if rest and self._pattern.search(rest):
                self.has_match = True
                self._sink(*key, rest + b"\n")
        self._partial_lines.clear()
