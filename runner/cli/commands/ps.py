"""The verb `ps`: the list of runs on the hosts."""

from __future__ import annotations

import json

from runner.cli.command import Selection, verb


@verb("ps", all_="include ended runs")
def ps(selection: Selection, all_: bool = False, json_: bool = False) -> int:
    """List the runs on the cluster's hosts.

    Yours, and those of other users whose folders are readable.
    """
    from runner.ui.layout import terminal_width
    from runner.ui.reports import run_table
    from runner.workflows.discovery import open_run_finder

    composed = selection.compose_for_run("")
    with open_run_finder(composed, "ps", plain=True, gpus=True) as finder:
        runs = finder.runs()
        rows = run_table.rows(runs, all_=all_, clock_offsets=finder.clock_offsets)
        others = run_table.foreign_gpu_use(finder.facts, runs)
        table = run_table.Table(rows, others, finder.unreachable, finder.unreadable_runs)
    text = run_table.render(table, all_=all_, width=terminal_width())
    print(json.dumps(table.as_data()) if json_ else text)
    return 0
