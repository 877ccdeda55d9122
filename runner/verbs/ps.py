"""The verb `ps`: the list of runs on the hosts."""

from __future__ import annotations

import contextlib

import click

from runner.control.record import run_index
from runner.control.record.run_store import RunStore
from runner.control.run.job_run import queue_lines
from runner.core.errors import NotReady
from runner.core.remote_run import user_at_host
from runner.ui.layout import terminal_width, wrap_lines
from runner.ui.output import show
from runner.ui.reports import run_table
from runner.verbs.shared.selection import Selection, open_run_finder
from runner.verbs.shared.verb import json_option, show_json, verb


@verb(
    "ps",
    subject="cluster",
    examples={"ps": "the cluster of the last run", "ps lab3 --all": "ended runs, too"},
)
@click.option("-a", "--all", "all_", is_flag=True, help="include ended runs")
@json_option
def ps(selection: Selection, all_: bool, json_: bool) -> int:
    """List the runs on the cluster's hosts.

    Yours, and those of other users whose folders are readable.
    """
    composed = selection.contact_latest()
    with open_run_finder(composed, "ps", plain=True) as finder:
        runs = finder.runs()
    ends: dict[str, str] = {}  # how they ended by their records here
    folders: dict[str, str] = {}
    for run in runs:
        if not (all_ or run.is_active):
            continue
        launch = run_index.launch_of(run.info)
        if launch:
            folders[run.run_id] = launch.launched_from
        if launch and not run.is_active:
            with contextlib.suppress(NotReady):
                ends[run.run_id] = RunStore(launch.run_dir).read_result()[1].state
    rows = run_table.rows(runs, all_=all_, ends=ends, folders=folders)
    silent = finder.unreachable
    hidden = finder.hidden_runs
    if json_:
        data = {
            "runs": rows,
            "silent": {name: problem.message for name, problem in silent.items()},
            "hidden": hidden,
        }
        show_json(data)
        return 0
    width = terminal_width()
    text = run_table.render(rows, silent, hidden, all_=all_, width=width, reader=user_at_host())
    notes = [*queue_lines()] if composed.spec.slurm else []
    if notes and not (rows or silent or any(hidden.values())):
        text = ""  # that nothing is running is not so
    notes += [run_table.next_step(row, composed.run_flags(row.run_id)) for row in rows]
    show(wrap_lines("\n".join(filter(None, (text, *notes))), width))
    return 0
