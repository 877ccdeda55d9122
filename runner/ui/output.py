"""Output of the verbs: text in which nothing acts upon a terminal, whatever host is quoted."""

from __future__ import annotations

import sys
from typing import TextIO

from runner.core.text import printable_lines


def show(text: str, file: TextIO | None = None) -> None:
    """Print lines of the runner's own, to standard output unless to `file`."""
    print(printable_lines(text), file=file or sys.stdout)
