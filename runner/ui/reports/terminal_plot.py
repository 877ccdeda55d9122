"""Plot in the terminal, by plotext: a chart of curves, with a line for each run below it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from runner.core.history.charts import TIME, Chart
from runner.core.text import format_age, printable
from runner.ui.figures import number_text

COLOURS = (12, 208, 2, 13, 14, 9, 11, 8)  # of the 256 that terminals have
MARKERS = "•+xo*#%@"
"""Of the curves where there are no colours; where there are, they are drawn in Braille."""

TICKS, TICK_WIDTH = 5, 14


def render_plot(
    chart: Chart, labels: Sequence[str], width: int, height: int, *, colours: bool
) -> str:
    """Return a chart of that size, in cells; `labels` say what each of its curves is."""
    import plotext

    figure = plotext.figure
    figure.clear()
    figure.theme("simple" if colours else "colorless")
    figure.plot_size(width, max(6, height))
    unit = f" ({chart.unit})" if chart.unit else ""
    figure.title(printable(f"{chart.name}{unit} over {_axis(chart)}"))
    for index, curve in enumerate(chart.curves):
        marker: Any = MARKERS[index % len(MARKERS)]
        if colours:
            marker = plotext.marker("braille", COLOURS[index % len(COLOURS)])
        for piece in curve.pieces:
            xs, ys = zip(*piece, strict=True)
            signal = figure.signal(list(xs), list(ys), marker=marker)
            if len(piece) > 1:
                signal.lines()
            figure.draw(signal)
    _set_ticks(figure, chart, width)
    text = figure.build().string(colorless=not colours)
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join([*lines, *_legend(labels, colours=colours)])


def _axis(chart: Chart) -> str:
    return "time since the launch" if chart.x == TIME else "steps"


def _set_ticks(figure: Any, chart: Chart, width: int) -> None:
    points = [point for curve in chart.curves for piece in curve.pieces for point in piece]
    for axis, name in enumerate("xy"):
        low, high = (end(point[axis] for point in points) for end in (min, max))
        count = max(2, min(7, width // TICK_WIDTH)) if name == "x" else TICKS
        steps = [low + (high - low) * n / (count - 1) for n in range(count)]
        if name == "x" and chart.x != TIME:
            steps = sorted({float(round(step)) for step in steps})
        is_time = name == "x" and chart.x == TIME
        labels = _time_labels(steps) if is_time else [number_text(step) for step in steps]
        figure.ruler(name).ticks(
            steps if high > low else [low], labels if high > low else labels[:1]
        )


def _time_labels(times: Sequence[float]) -> list[str]:
    """Return the labels of ticks: seconds with decimals where whole ones would not differ."""
    gap = min((late - early for early, late in itertools.pairwise(times)), default=1.0)
    if min(times) >= 0 and (gap >= 1 or gap <= 0):
        return [format_age(at) for at in times]
    decimals = min(6, max(0, math.ceil(-math.log10(gap)))) if gap > 0 else 0
    return [f"{at:,.{decimals}f} s" for at in times]


def _legend(labels: Sequence[str], *, colours: bool) -> Iterator[str]:
    for index, label in enumerate(labels):
        mark = MARKERS[index % len(MARKERS)]
        if colours:
            mark = f"\x1b[38;5;{COLOURS[index % len(COLOURS)]}m━━\x1b[0m"
        yield f"  {mark} {printable(label)}"
