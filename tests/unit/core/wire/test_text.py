"""Foreign text on our terminal."""

from __future__ import annotations

import pytest

from runner.core.wire.text import format_age, printable


def test_a_name_can_be_printed() -> None:
    """On one line, in any terminal."""
    assert printable("a/\u00e9 b") == "a/\u00e9 b"
    assert printable("a\nb\x1b[1m\udce9") == r"a\nb\x1b[1m\udce9"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (86, "1 m 26 s"), (7500, "2 h 05 m"), (273_600, "3 d 04 h")],
)
def test_ages_have_one_form(seconds: float, text: str) -> None:
    """Two units, whatever the age."""
    assert format_age(seconds) == text
