"""Foreign text on our terminal."""

from __future__ import annotations

from runner.core.wire.text import printable


def test_a_name_can_be_printed() -> None:
    """On one line, in any terminal."""
    assert printable("a/\u00e9 b") == "a/\u00e9 b"
    assert printable("a\nb\x1b[1m\udce9") == r"a\nb\x1b[1m\udce9"
