"""The verb `compare`: what differs between runs, and what came of them."""

from __future__ import annotations

import itertools
import sys
from csv import DictWriter

import click

from runner.core.wire.text import join_some
from runner.ui.output import note, note_incomplete, show
from runner.verbs.shared.verb import json_option, runs_option, show_json, verb

LAST = 10


@verb(
    "compare",
    examples={"compare": "the last 10 runs", "compare --sort -loss": "by a column, reversed"},
)
@runs_option
@click.option(
    "--sort", default="", metavar="loss", help="any column or key; -COLUMN for the most first"
)
@click.option("--csv", is_flag=True, help="print CSV, with every key that differs")
@json_option
def compare(run: tuple[str, ...], sort: str, csv: bool, json_: bool) -> int:
    """Print what differs between runs on record, and what came of them.

    Without a RUN, these are the last 10 runs launched from this folder.
    """
    from runner.control.history.run_reader import read_run
    from runner.control.record.launch_record import LATEST
    from runner.control.record.run_index import launched_here, named_records
    from runner.ui.comparison import compare_runs, render_runs, sort_runs
    from runner.ui.layout import terminal_width

    newest = itertools.islice(launched_here(), LAST)
    records = named_records(run) if run else [*newest][::-1] or named_records([LATEST])
    runs = [read_run(record, is_whole=False) for record in records]
    if sort:
        runs = sort_runs(runs, sort)
    rows = compare_runs(runs)
    if json_:
        show_json(rows)
    elif csv:
        writer = DictWriter(sys.stdout, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    else:
        show(render_runs(runs, terminal_width()))
    for each in runs:
        if each.problems:
            note(f"the record of {each.run_id} is damaged: {join_some(each.problems, 1)}")
    note_incomplete([each.run_id for each in runs if each.verdict is None], "the table")
    return 0
