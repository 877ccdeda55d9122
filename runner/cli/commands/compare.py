"""The verb `compare`: a table of what differs between runs, and of what came of them."""

from __future__ import annotations

import json
import sys

from runner.cli.verb import verb
from runner.core.errors import ConfigError, Problem
from runner.ui.output import show

LAST = 10


@verb(
    "compare",
    run="a run id or its beginning, latest, a folder, or a sweep's id; repeatable",
    sort="started, duration, loss, any metric or key; -KEY for the most first",
    csv="print CSV, with every key that differs",
)
def compare(
    run: tuple[str, ...] = (), sort: str = "", csv: bool = False, json_: bool = False
) -> int:
    """Print what differs between runs on record, and what came of them.

    Without a RUN, these are the last 10 runs launched from this folder.
    """
    from runner.control.history.named_runs import last_records, named_records
    from runner.ui.layout import terminal_width
    from runner.ui.reports import comparison_table
    from runner.workflows.history.compare import compared
    from runner.workflows.history.incomplete_records import note_damaged, note_incomplete

    if csv and json_:
        message = "goes not together with --json: both say how it is printed"
        raise ConfigError([Problem("--csv", message, "leave one of them out")])
    comparison = compared(named_records(run) if run else last_records(LAST), sort)
    if json_:
        show(json.dumps(comparison_table.as_data(comparison)))
    elif csv:
        sys.stdout.write(comparison_table.as_csv(comparison))
    else:
        show(comparison_table.render_comparison(comparison, terminal_width()))
    note_damaged(comparison.runs)
    note_incomplete([each.run_id for each in comparison.runs if not each.state], "the table")
    return 0
