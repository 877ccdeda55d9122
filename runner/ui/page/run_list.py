"""Page of a cluster: a list of its runs, with a link to the page of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.core.text import counted, format_age, printable
from runner.ui.page.metric_data import progress
from runner.ui.page.render import LiveAddress, render_html
from runner.ui.reports.run_table import Row

SCRIPTS = ("dom.js", "view.js", "sections.js", "live.js", "run_list.js")


def list_data(cluster: str, rows: Sequence[Row], omitted_count: int, now: float) -> dict[str, Any]:
    """Return what the page draws of these runs, the youngest first."""
    left_out = f"{counted(omitted_count, 'older run')} not shown" if omitted_count else ""
    return {
        "made_at": round(now, 3),
        "cluster": printable(cluster),
        "runs": [_run(row) for row in rows],
        "omitted": left_out,
    }


def render_list(data: Mapping[str, Any], live: LiveAddress) -> str:
    """Return the page."""
    return render_html(f"runs on {data['cluster']}", data, SCRIPTS, live)


def _run(row: Row) -> dict[str, Any]:
    at = row.progress
    return {
        "id": printable(row.run_id),
        "task": printable(row.task),
        "owner": printable(row.owner),
        "state": printable(row.state),
        "is_on": not row.ended,
        "age": f"{format_age(row.age)}{' ago' if row.ended else ''}",
        "nodes": f"{len(row.nodes)} of {row.of}" if len(row.nodes) != row.of else str(row.of),
        "gpus": row.gpus,
        "attempt": row.attempt + 1,
        "progress": at and progress(at.step, at.steps, at.rate, at.unit, at.left_s),
    }
