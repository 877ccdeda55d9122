"""Control sequences in the output of ranks: those that move the cursor are removed."""

from __future__ import annotations

import re

ESC = b"\x1b"
RESET = b"\x1b[0m"

CONTROL_BYTES = b"\x05\x07\x08\x0b\x0c\x0e\x0f\x7f"  # bells, character sets, cursor movements
_CONTROL_CHARS = tuple(bytes([each]) for each in CONTROL_BYTES)

C1_LEAD = b"\xc2"
C1_CONTROL = re.compile(C1_LEAD + rb"[\x80-\x9f]")
"""In UTF-8; U+009B alone begins a sequence, as ESC [ does."""

ESCAPE_SEQUENCE = re.compile(
    rb"\x1b(?:\[([0-?]*)[ -/]*([@-~]?)|[]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~]?)"
)


def clean_lines(lines: bytes, *, keep_colours: bool) -> bytes:
    """Return lines without control sequences, but perhaps with colours that end with their line."""
    if C1_LEAD in lines:
        lines = C1_CONTROL.sub(b"", lines)
    if ESC in lines:
        keep = keep_colours
        lines = ESCAPE_SEQUENCE.sub(lambda m: m[0] if keep and m[2] == b"m" else b"", lines)
    if any(control in lines for control in _CONTROL_CHARS):
        lines = lines.translate(None, CONTROL_BYTES)
    if ESC in lines:
        split_lines = lines.split(b"\n")
        lines = b"\n".join([line + RESET if ESC in line else line for line in split_lines])
    return lines


def strip_controls(line: bytes) -> str:
    """Return a line as text without any control characters."""
    text = ESCAPE_SEQUENCE.sub(b"", line).decode(errors="replace").expandtabs(4)
    return "".join(char for char in text if char.isprintable())
