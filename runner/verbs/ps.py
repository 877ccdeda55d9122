"""The verb `ps`: the list of runs on the hosts."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from runner.core.codec import encode
from runner.core.errors import NotReady
from runner.core.shell import this_program
from runner.core.text import join_some
from runner.ui.output import show
from runner.verbs.shared.selection import Selection
from runner.verbs.shared.verb import json_option, verb

if TYPE_CHECKING:
    from runner.core.model.results import RemoteRun

MAX_COMMANDS = 3  # of each cluster


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
    from runner.control.attempt.stop import user_at_host
    from runner.control.record import run_index
    from runner.ui.layout import terminal_width, wrap_lines
    from runner.ui.reports import run_table
    from runner.verbs.shared.discovery import open_run_finder
    from runner.verbs.shared.job_run import queue_lines

    composed = selection.contact_latest()
    with open_run_finder(composed, "ps", plain=True) as finder:
        runs = finder.runs()
        ends = _ends_on_record(runs) if all_ else {}
        places = {run.run_id: run_index.folder_of(run.info) for run in runs}
        folders = {run_id: str(folder) for run_id, folder in places.items() if folder}
        offsets = finder.clock_offsets
        rows = run_table.rows(runs, offsets, all_=all_, ends=ends, folders=folders)
    silent = finder.unreachable
    hidden = finder.unreadable_runs
    if json_:
        data = {
            "runs": [encode(row) for row in rows],
            "silent": {name: problem.message for name, problem in silent.items()},
            "hidden": hidden,
        }
        show(json.dumps(data))
        return 0
    width = terminal_width()
    text = run_table.render(rows, silent, hidden, all_=all_, width=width, reader=user_at_host())
    is_slurm = composed.spec.slurm is not None
    notes = [*(queue_lines() if is_slurm else ())]
    notes += [run_table.next_step(row, composed.run_flags(row.run_id)) for row in rows]
    notes += [] if selection.names_cluster else others_from_here(composed.spec.cluster.name)
    show(wrap_lines("\n".join(filter(None, (text, *notes))), width))
    return 0


def others_from_here(shown: str) -> list[str]:
    """Return what is launched from here on other clusters and may be on, and what asks about it.

    That goes by the record of each: their YAML may be elsewhere, or gone.
    """
    from runner.control.record import run_index
    from runner.control.record.contact_file import read_contact

    run_ids: dict[str, list[str]] = {}
    for folder in run_index.unfinished():
        request = read_contact(folder)
        if request.spec.cluster.name != shown:
            run_ids.setdefault(request.spec.cluster.name, []).append(request.spec.run_id)
    lines = []
    for cluster, ids in run_ids.items():
        where = f"launched from here on {cluster}, without a proven end on record"
        lines.append(f"{where}: {join_some(ids)}")
        lines += [f"  {this_program()} why --run {run_id}" for run_id in ids[:MAX_COMMANDS]]
    return lines


def _ends_on_record(runs: Iterable[RemoteRun]) -> dict[str, str]:
    """Return how runs ended by their records here."""
    from runner.control.record import run_index
    from runner.control.record.run_store import RunStore

    ends = {}
    for run in runs:
        folder = None if run.is_active else run_index.record_of(run.info)
        store = RunStore(folder) if folder else None
        if store and store.has_result:
            with contextlib.suppress(NotReady):
                ends[run.run_id] = store.read_result()[1].state
    return ends
