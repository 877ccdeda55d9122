"""Lines of the runner's own on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios

import pytest

from runner.ui.output import coloured, message_text

COMMAND = "python -m runner attach 0314-1592-digits-65a3"
TEXT = f"note: {'word ' * 30}\nplain {'word ' * 30}\n  it outlives the terminal: {COMMAND}"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_lines_fit_a_terminal_and_its_notes_are_dim(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command stays whole; where colours are not wanted, there are none."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    shown = message_text(TEXT, theirs)
    monkeypatch.setenv("NO_COLOR", "1")
    grey = message_text(TEXT, theirs)
    os.close(ours)
    os.close(theirs)

    assert "\x1b" not in grey
    assert all(len(line) < columns for line in grey.split("\n"))
    assert grey.split("\n")[-1].endswith(COMMAND)
    dim, rest = grey.split("\nplain", 1)
    assert shown == f"\x1b[2m{dim}\x1b[0m\nplain{rest}"


def test_warnings_and_errors_are_coloured_and_their_hints_dim() -> None:
    """The same in `check` and in a launch."""
    hint = "\n    try this"
    assert coloured(f"error: a\n  b{hint}\nwarning: c\nplain{hint}") == (
        f"\x1b[1;31merror\x1b[0m: a\n  b\x1b[2m{hint}\x1b[0m\n"
        f"\x1b[33mwarning\x1b[0m: c\x1b[2m\x1b[0m\nplain{hint}"
    )


def test_in_a_pipe_a_line_is_a_line() -> None:
    """Without a colour."""
    reading, writing = os.pipe()
    assert message_text(TEXT, writing) == TEXT
    os.close(reading)
    os.close(writing)
