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

from runner.ui.console.dedup import Source
from runner.ui.layout import fold_names

ESC = b"\x1b"
RESET = b"\x1b[0m"
PALETTE_256 = (b"38;5;37", b"38;5;133", b"38;5;71", b"38;5;136", b"38;5;104", b"38;5;173")
"""Colours that are readable on black and on white; red is reserved for errors."""
PALETTE_16 = (b"36", b"35", b"32")
RED, GREEN, YELLOW, DIM, BOLD = b"31", b"32", b"33", b"2", b"1"

CONTROL_BYTES = b"\x05\x07\x08\x0b\x0c\x0e\x0f\x7f"
"""Bells, answerbacks, character sets, and cursor movements."""

ESCAPE_SEQUENCE = re.compile(
    rb"\x1b(?:\[([0-?]*)[ -/]*([@-~]?)|[]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~]?)"
)
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

    def prefix(self, source: Source, *, is_error: bool, is_plain: bool = False) -> bytes:
        """Return the prefix of a rank's lines; a plain one, without colour, is faster."""
        if is_plain:
            return b"[%s:%d]%s " % (source.node.encode(), source.rank, b"!" if is_error else b"")
        return self._prefix(b"[%s:%d]" % (source.node.encode(), source.rank), source.node, is_error)

    def prefix_for_many(self, sources: Sequence[Source], *, is_error: bool) -> bytes:
        """Return the prefix of a line that several ranks wrote."""
        nodes = tuple(dict.fromkeys(source.node for source in sources))
        names = fold_names(nodes)
        suffix = f" {names}" if len(names) <= MAX_NAMES_WIDTH else ""
        text = f"[{TIMES_SIGN}{len(sources)}{suffix}]".encode()
        return self._prefix(text, nodes[0] if len(nodes) == 1 else "", is_error)

    def _prefix(self, text: bytes, node: str, is_error: bool) -> bytes:
        if node and self.has_colour:
            number = self._node_numbers.setdefault(node, len(self._node_numbers))
            text = self.sgr(self._palette[number % len(self._palette)], text)
        return text + (self.sgr(RED, b"!") if is_error else b"") + b" "

    def clean(self, lines: bytes) -> bytes:
        """Return lines without control sequences, except colours that end with their line."""
        if ESC in lines:
            lines = ESCAPE_SEQUENCE.sub(_keep_colours if self.has_colour else b"", lines)
        if any(control in lines for control in _CONTROL_CHARS):
            lines = lines.translate(None, CONTROL_BYTES)
        if ESC in lines:
            split_lines = lines.split(b"\n")
            lines = b"\n".join([line + RESET if ESC in line else line for line in split_lines])
        return lines

    def style_report(self, text: str) -> str:
        """Return a report with its success or failure in colour."""
        if not self.has_colour:
            return text
        return "\n".join([self._style_report_line(line) for line in text.split("\n")])

    def _style_report_line(self, line: str) -> str:
        verdict = re.match(r"run \S+ (succeeded|stopped|\w+) ", line)
        if verdict:
            code = {"succeeded": GREEN, "stopped": YELLOW}.get(verdict[1], RED)
            return self.sgr(BOLD + b";" + code, line.encode()).decode()
        if line.startswith("first failure: "):
            return self.sgr(BOLD + b";" + RED, line.encode()).decode()
        return line


def strip_controls(line: bytes) -> str:
    """Return a line as text without any control characters."""
    text = ESCAPE_SEQUENCE.sub(b"", line).decode(errors="replace").expandtabs(4)
    return "".join(char for char in text if char.isprintable())


_CONTROL_CHARS = tuple(bytes([each]) for each in CONTROL_BYTES)


def _keep_colours(match: re.Match[bytes]) -> bytes:
    return match[0] if match[2] == b"m" else b""
