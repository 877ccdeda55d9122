"""Table of the active runs: how far each is, and how long it will take."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from runner.core.model.run_info import BROKEN
from runner.core.text import counted, format_age, printable
from runner.ui.figures import rate_text, step_text
from runner.ui.reports.run_table import Row, nodes_text
from runner.ui.top.cells import clean
from runner.ui.top.columns import Column, table_lines

RUN_ID_WIDTH = 32
"""The columns of a run id that are kept: its end tells it from others of the same task."""

GOOD_STATES = ("running", "starting")


def run_lines(runs: Sequence[Row], width: int, most: int) -> list[Text]:
    """Return the lines of the headers and the runs, at most so many."""
    if not runs or most < 2:  # noqa: PLR2004 (the headers, and a run)
        return []
    shown = runs if len(runs) < most else runs[: max(1, most - 2)]
    lines = table_lines(_columns(shown), width, {})
    if len(shown) < len(runs) and len(lines) < most:
        lines.append(Text(f"and {counted(len(runs) - len(shown), 'more run')}", "dim"))
    return lines


def _columns(runs: Sequence[Row]) -> list[Column]:
    def column(
        header: str, texts: Sequence[str], priority: int, least: int = 0, *, right: bool = False
    ) -> Column:
        return Column(header, [*map(Text, texts)], priority, is_number=right, least=least)

    states = [Text(clean(run.state), _state_style(run.state)) for run in runs]
    return [
        column("RUN", [clean(run.run_id) for run in runs], 0, RUN_ID_WIDTH),
        Column("STATE", states, 4, least=10),
        column("STEP", [step_text(run.progress) if run.progress else "-" for run in runs], 3),
        column("DONE", [_done(run) for run in runs], 1, right=True),
        column("LEFT", [_left(run) for run in runs], 2, right=True),
        column("RATE", [rate_text(run.progress) if run.progress else "-" for run in runs], 5, 12),
        column("AGE", [format_age(run.age) for run in runs], 6, right=True),
        column("GPUS", [str(run.gpus or "-") for run in runs], 8, right=True),
        column("NODES", [printable(nodes_text(run)) for run in runs], 7, 8),
        column("BY", [clean(run.owner) for run in runs], 9, 8),
    ]


def _state_style(state: str) -> str:
    if state.startswith(GOOD_STATES):
        return "green"
    return "red" if state.startswith((BROKEN, "failed", "stuck")) else "yellow"


def _done(run: Row) -> str:
    progress = run.progress
    if progress is None or not progress.steps:
        return "-"
    return f"{min(100.0, 100 * progress.step / progress.steps):.0f}%"


def _left(run: Row) -> str:
    left_s = run.progress.left_s if run.progress else None
    return "-" if left_s is None else format_age(left_s)
