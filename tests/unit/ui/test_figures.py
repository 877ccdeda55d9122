"""Figures in words: the unit of a rate, which a program may have given with its own "/s"."""

from __future__ import annotations

import pytest

from runner.core.history.charts import STEP, make_chart
from runner.core.history.run_data import Metric, RunData, Series
from runner.core.model.metrics import Metrics
from runner.ui.figures import rate_text
from runner.ui.page import page_data


@pytest.mark.parametrize(
    ("unit", "expected"),
    [("it", "812.4 it/s"), ("it/s", "812.4 it/s"), ("", "812.4/s"), ("/s", "812.4/s")],
)
def test_a_rate_is_per_second_once(unit: str, expected: str) -> None:
    """In the bar and the tables."""
    assert rate_text(Metrics(1, rate=812.4, unit=unit)) == expected


def test_charts_and_pages_say_it_once() -> None:
    """The label of a plot, the chart of a page and its progress."""
    series = {0: Series((1.0,), (1,), (2.0,))}
    run = RunData("r", "/r", step=1, metrics=(Metric("rate", "it/s", by_attempt=series),))
    assert make_chart([run], "rate", STEP).unit == "it/s"
    (data,) = page_data([run], 0.0)["runs"]
    assert data["metrics"][0]["unit"] == data["progress"]["unit"] == "it/s"
