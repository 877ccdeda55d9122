"""Colours of ranks' lines: coloured prefixes, and no sequences that move the cursor.

A prefix has its node's colour. `[gpu1:0] text` is standard output, `[gpu1:0]! text` standard
error (the mark is red where there is colour), `[x15 gpu[1-4]] text` (with a real times sign) the
same line from 15 ranks.
Colours that ranks print end with their line; NO_COLOR removes all colours.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from runner.ui.console.control_sequences import clean_lines
from runner.ui.console.dedup import Source
from runner.ui.layout import fold_names

PALETTE_256 = (b"38;5;37", b"38;5;133", b"38;5;71", b"38;5;136", b"38;5;104", b"38;5;173")
"""Colours that are readable on black and on white; red is reserved for errors."""
PALETTE_16 = (b"36", b"35", b"32")
RED, GREEN, YELLOW, DIM, BOLD = b"31", b"32", b"33", b"2", b"1"

MAX_NAMES_WIDTH = 20
TIMES_SIGN = "\N{MULTIPLICATION SIGN}"


class LineStyler:
    """Styles the lines of a set of nodes."""

    def __init__(self, nodes: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
        self.has_colour = not environ.get("NO_COLOR")
        has_256_colours = "256color" in environ.get("TERM", "") or bool(environ.get("COLORTERM"))
        self._palette = PALETTE_256 if has_256_colours else PALETTE_16
        self._node_numbers = {node: number for number, node in enumerate(nodes)}

    def sgr(self, code: bytes, text: bytes) -> bytes:
        """Return text in a colour."""
        return b"\x1b[%sm%s\x1b[0m" % (code, text) if self.has_colour else text

    def prefix(self, *sources: Source, is_error: bool, is_plain: bool = False) -> bytes:
        """Return the prefix of lines that these ranks wrote; one without colour is faster."""
        node = sources[0].node
        text = f"[{sources[0].label}]".encode()
        if is_plain:
            return text + (b"! " if is_error else b" ")
        nodes = {source.node for source in sources}
        if len(sources) > 1:
            names = fold_names(source.node for source in sources)
            suffix = f" {names}" if len(names) <= MAX_NAMES_WIDTH else ""
            text = f"[{TIMES_SIGN}{len(sources)}{suffix}]".encode()
        if len(nodes) == 1 and self.has_colour:
            number = self._node_numbers.setdefault(node, len(self._node_numbers))
            text = self.sgr(self._palette[number % len(self._palette)], text)
        return text + (self.sgr(RED, b"!") if is_error else b"") + b" "

    def clean(self, lines: bytes) -> bytes:
        """Return lines without control sequences, except colours that end with their line."""
        return clean_lines(lines, keep_colours=self.has_colour)

    def style_report(self, text: str) -> str:
        """Return a report with its success or failure in colour."""
        lines = text.split("\n")
        for number, line in enumerate(lines):
            if verdict := re.match(r"run \S+ (?!goes |is )(\w+) |first failure: ", line):
                code = {"succeeded": GREEN, "stopped": YELLOW}.get(verdict[1], RED)
                lines[number] = self.sgr(
                    BOLD + b";" + code, line.encode(errors="backslashreplace")
                ).decode()
        return "\n".join(lines)
