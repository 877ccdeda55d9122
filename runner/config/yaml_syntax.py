"""YAML syntax errors as problems: the place, the line that is quoted, and what is usual there."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import yaml

from runner.config.search_path import display_path
from runner.core.errors import Problem

REMEDIES = {
    r"mapping values are not allowed|expected <block end>": (
        "keys beside each other begin in one column, those below a key further in; a text with "
        "`: ` in it is quoted"
    ),
    r"character '\\t' that cannot": "indent with spaces, not with tabs",
    r"expected alphabetic or numeric": "a text that begins with * or & is quoted, such as '*.pth'",
    r"that cannot start any token": "a text that begins so is quoted",
    r"expected ',' or|expected the node content": "a bracket is not closed, or a comma is missing",
    r"unexpected end of stream": "a quote is not closed",
}
"""What to do about PyYAML's messages."""


def syntax_problem(error: yaml.MarkedYAMLError, mark: yaml.Mark) -> Problem:
    """Return the problem of a file that YAML cannot parse, as FILE:LINE:COLUMN."""
    text = ", ".join(filter(None, (error.context, error.problem)))
    remedy = next((hint for known, hint in REMEDIES.items() if re.search(known, text)), "")
    lines: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        lines = Path(mark.name).read_text(encoding="utf-8").splitlines()
    line = lines[mark.line].strip() if mark.line < len(lines) else ""
    where = f"{display_path(Path(mark.name))}:{mark.line + 1}:{mark.column + 1}"
    return Problem(where, text, "\n".join(filter(None, (f"there: {line}" * bool(line), remedy))))
