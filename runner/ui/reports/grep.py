"""Only the lines that match, of output that comes in pieces."""

from __future__ import annotations

import re
from collections.abc import Callable

Show = Callable[[str, int, str, bytes], None]
"""Takes (node, rank, stream, bytes)."""


class Matching:
    """Passes on the whole lines of every rank that match a pattern.

    Attributes:
        found: Whether any did.
    """

    def __init__(self, pattern: re.Pattern[bytes], show: Show) -> None:
        self.found = False
        self._pattern, self._show = pattern, show
        self._unfinished: dict[tuple[str, int, str], bytes] = {}

    def show(self, node: str, rank: int, stream: str, data: bytes) -> None:
        """Take the next piece."""
        *lines, rest = (self._unfinished.get((node, rank, stream), b"") + data).split(b"\n")
        self._unfinished[node, rank, stream] = rest
        found = b"".join(line + b"\n" for line in lines if self._pattern.search(line))
        if found:
            self.found = True
            self._show(node, rank, stream, found)

    def finish(self) -> None:
        """Take what has no end for a line."""
        for key, rest in self._unfinished.items():
            if rest and self._pattern.search(rest):
                self.found = True
                self._show(*key, rest + b"\n")
        self._unfinished.clear()
