"""Figures in words: the unit of a rate, which a program may have given with its own "/s"."""

from __future__ import annotations

import pytest

from runner.core.model.metrics import Metrics
from runner.ui.figures import rate_text


@pytest.mark.parametrize(
    ("unit", "expected"),
    [("it", "812.4 it/s"), ("it/s", "812.4 it/s"), ("", "812.4/s"), ("/s", "812.4/s")],
)
def test_a_rate_is_per_second_once(unit: str, expected: str) -> None:
    """In the bar and the tables."""
    assert rate_text(Metrics(1, rate=812.4, unit=unit)) == expected
