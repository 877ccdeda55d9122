"""Columns: aligned rows, and tables that fit a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
from pathlib import Path

import pytest

from runner.ui.layout import UNLIMITED_WIDTH, align, message_width, render_table

HEADERS = ("RUN", "STATE", "AGE")
ROWS = [("1122-2359-resnet18-ab12", "running, 3 of 4 nodes", "42 min"), ("0314", "[bold]", "3 d")]


def test_rows_are_aligned_but_for_long_names() -> None:
    """The last column is not padded, and one long cell does not push all others away."""
    assert align([("a", "x"), ("gpu10", "y"), ("g" * 50, "z")], max_width=5) == [
        "  a      x",
        "  gpu10  y",
        f"  {'g' * 50}  z",
    ]


def test_table_in_a_pipe_has_a_line_per_row() -> None:
    """Whatever a terminal would make of it; and brackets are text."""
    assert render_table(HEADERS, ROWS, UNLIMITED_WIDTH, ("STATE",)) == [
        "RUN                      STATE                  AGE",
        "1122-2359-resnet18-ab12  running, 3 of 4 nodes  42 min",
        "0314                     [bold]                 3 d",
    ]


def test_table_fits_a_terminal() -> None:
    """Cells of some columns break; a run id, which is copied, never does."""
    assert render_table(HEADERS, ROWS, 46, ("STATE",)) == [
        "RUN                      STATE          AGE",
        "1122-2359-resnet18-ab12  running, 3 of  42 min",
        "                         4 nodes",
        "0314                     [bold]         3 d",
    ]


def test_notes_are_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where standard error is none, they are not wrapped."""
    near, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 132, 0, 0))
    with os.fdopen(near, "wb"), os.fdopen(far, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert message_width() == 132
    with Path(os.devnull).open("w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        assert message_width() == UNLIMITED_WIDTH
