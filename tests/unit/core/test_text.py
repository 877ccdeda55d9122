"""Text of others on our terminal."""

from __future__ import annotations

from runner.core.text import readable


def test_a_name_can_be_printed() -> None:
    """On one line, in any terminal."""
    assert readable("a/\u00e9 b") == "a/\u00e9 b"
    assert readable("a\nb\x1b[1m\udce9") == r"a\nb\x1b[1m\udce9"
