"""Figures of a run's progress in words, the same in the bar of the console and in `ps`."""

from __future__ import annotations

import math

from runner.core.wire.metrics import Metrics, RankProgress
from runner.core.wire.text import format_age, per_second, printable

MAX_SHOWN = 1e15  # beyond it, and for other small numbers, the exponent is shown


def step_text(progress: Metrics | RankProgress) -> str:
    """Return "120/240", or "step 120" where it is not known how many there are; "" for no step."""
    if progress.step is None:
        return ""
    if progress.steps is None:
        return f"step {progress.step}"
    return f"{progress.step}/{progress.steps}"


def rate_text(progress: Metrics | RankProgress) -> str:
    """Return "812.4 samples/s", "" if there is no rate."""
    if progress.rate is None:
        return ""
    unit = per_second(printable(progress.unit))
    space = "" if unit.startswith("/") else " "
    return f"{number_text(progress.rate)}{space}{unit}"


def left_text(left_s: float | None) -> str:
    """Return "1 m 26 s left", "" if that is not known."""
    return "" if left_s is None else f"{format_age(left_s)} left"


def number_text(value: float) -> str:
    """Return a number with four digits that say something, or all before the point."""
    is_long = math.isfinite(value) and 1e4 <= abs(value) < MAX_SHOWN  # noqa: PLR2004 (four digits)
    return f"{value:,.0f}" if is_long else f"{value:.4g}"
