"""The verb `plot`: loss, rate and utilisation of runs, in the terminal or as an image."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.cli.verb import verb
from runner.core.errors import ConfigError, Problem, reason_of
from runner.ui.output import show

if TYPE_CHECKING:
    from runner.core.history.charts import Chart

FORMATS = (".png", ".svg")
PIPE_WIDTH, HEIGHT = 80, 20


@verb(
    "plot",
    run="a run id or its beginning, latest, a folder, or a sweep's id; repeatable",
    metric="a metric, or a figure of samples such as gpu.utilization; repeatable",
    x="step or time: what the curves are drawn over",
    out="write an image instead: a file whose name ends in .png or .svg",
)
def plot(
    run: tuple[str, ...] = (), metric: tuple[str, ...] = (), x: str = "step", out: str = ""
) -> int:
    """Draw loss, rate and GPU utilisation of runs on record, several over each other.

    Without a RUN, it is the latest one.
    """
    from runner.control.history.named_runs import named_records
    from runner.workflows.history.incomplete_records import note_incomplete
    from runner.workflows.history.plot import charts_of, labels_of, load_runs

    if out and Path(out).suffix.lower() not in FORMATS:
        message = f"must end in {' or '.join(FORMATS)}, not {out!r}"
        raise ConfigError([Problem("--out", message)])
    runs = load_runs(named_records(run or ("latest",)))
    charts = charts_of(runs, metric, x)
    labels = labels_of(runs, charts)
    if out:
        title = f"{runs[0].run_id}  {runs[0].task}".rstrip() if len(runs) == 1 else ""
        _write_image(charts, labels, Path(out), title)
    else:
        _draw(charts, labels)
    note_incomplete([each.run_id for each in runs if each.verdict is None], "the plot")
    return 0


def _draw(charts: Sequence[Chart], labels: Sequence[Sequence[str]]) -> None:
    from runner.ui.layout import detect_screen
    from runner.ui.reports.terminal_plot import render_plot

    width, is_terminal = detect_screen()
    rows = shutil.get_terminal_size((PIPE_WIDTH, HEIGHT + 2)).lines if is_terminal else HEIGHT
    height = max(10, min(HEIGHT, rows - 2 - len(labels[0])))
    colours = is_terminal and not os.environ.get("NO_COLOR")
    width = width if is_terminal else PIPE_WIDTH
    for chart, names in zip(charts, labels, strict=True):
        print(render_plot(chart, names, width, height, colours=colours))


def _write_image(
    charts: Sequence[Chart], labels: Sequence[Sequence[str]], path: Path, title: str
) -> None:
    from runner.cli.extras import missing_extra
    from runner.ui.reports.image_plot import write_image

    try:
        write_image(charts, labels, path, title)
    except ImportError as error:
        raise missing_extra("--out", "matplotlib") from error
    except OSError as error:
        message = f"cannot write {path}: {reason_of(error)}"
        raise ConfigError([Problem("--out", message)]) from error
    show(f"{path}")
