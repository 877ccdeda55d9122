"""Plot as an image, by matplotlib: the charts of runs below each other, as PNG or SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.core.history.charts import TIME, Chart
from runner.core.text import printable

WIDTH, HEIGHT, DPI = 9.0, 3.2, 150  # of each chart, in inches


def write_image(
    charts: Sequence[Chart], labels: Sequence[Sequence[str]], path: Path, title: str = ""
) -> None:
    """Write charts; `labels` or a title say whose curves they are. Raise OSError, ImportError."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Names are no formulas, and texts of an SVG stay texts.
    with rc_context({"text.usetex": False, "text.parse_math": False, "svg.fonttype": "none"}):
        figure = Figure(figsize=(WIDTH, HEIGHT * len(charts)), layout="constrained")
        all_axes = figure.subplots(len(charts), 1, squeeze=False)[:, 0]
        for chart, names, axes in zip(charts, labels, all_axes, strict=True):
            for index, (curve, name) in enumerate(zip(chart.curves, names, strict=True)):
                for number, piece in enumerate(curve.pieces):
                    xs, ys = zip(*piece, strict=True)
                    marker = "o" if len(piece) == 1 else ""
                    label = None if number else printable(name)
                    axes.plot(xs, ys, label=label, color=f"C{index % 10}", marker=marker)
            unit = f" ({chart.unit})" if chart.unit else ""
            axes.set_ylabel(printable(f"{chart.name}{unit}"))
            axes.set_xlabel("seconds since the launch" if chart.x == TIME else "step")
            axes.grid(alpha=0.3)
            if not title:
                axes.legend(fontsize="small")
        if title:
            figure.suptitle(printable(title), fontsize="medium")
        figure.savefig(path, dpi=DPI, format=path.suffix[1:].lower())
