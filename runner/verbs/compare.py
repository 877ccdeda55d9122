"""The verb `compare`: what differs between runs, and what came of them."""

from __future__ import annotations

import itertools
import json
import sys
from csv import DictWriter
from pathlib import Path

import click

from runner.control.code.pool import StoredRelease, difference, find_release
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.history import RunData
from runner.core.wire.text import join_some, printable_lines
from runner.ui.output import note, note_incomplete, show
from runner.verbs.shared.verb import json_option, runs_option, verb

LAST = 10


@verb(
    "compare",
    examples={"compare": "the last 10 runs", "compare --sort -loss": "by a column, reversed"},
)
@runs_option
@click.option(
    "--sort", default="", metavar="loss", help="any column or key; -COLUMN for the most first"
)
@click.option("--code", is_flag=True, help="print the difference between the code of two runs")
@click.option("--csv", is_flag=True, help="print CSV, with every key that differs")
@json_option
def compare(run: tuple[str, ...], sort: str, code: bool, csv: bool, json_: bool) -> int:
    """Print what differs between runs on record, and what came of them.

    Without a RUN, these are the last 10 runs launched from this folder.
    """
    from runner.control.history.run_reader import read_run
    from runner.control.record.file_names import LATEST
    from runner.control.record.run_index import launched_here, named_records
    from runner.ui.comparison import compare_runs, render_runs, sort_runs
    from runner.ui.layout import terminal_width

    newest = itertools.islice(launched_here(), 2 if code else LAST)
    records = named_records(run) if run else [*newest][::-1] or named_records([LATEST])
    runs = [read_run(record, is_whole=False) for record in records]
    if code:
        if len(records) != 2:  # noqa: PLR2004 (a difference)
            message = f"compares two runs, not {len(records)}"
            raise ConfigError([Problem("--code", message, "name two, such as compare A B --code")])
        first = _pushed_code(records[0], runs[0])
        second = _pushed_code(records[1], runs[1])
        text = "".join(difference(first, second, [each.run_id for each in runs]))
        if not text:
            note("both have the same code")
        is_for_people = sys.stdout.isatty()  # else for `patch`
        sys.stdout.write(printable_lines(text) if is_for_people else text)
        return 0
    if sort:
        runs = sort_runs(runs, sort)
    rows = compare_runs(runs)
    if json_:
        show(json.dumps(rows))
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


def _pushed_code(record: Path, run: RunData) -> StoredRelease:
    """Return the code that the launch of a run pushed; raise NotReady if it is not kept here."""
    from runner.control.record.run_index import code_places

    release = run.plans[-1].release if run.plans else ""
    if found := find_release(code_places(record), release):
        return found
    hint = "a launch keeps what it pushes beside its record, in runs/.objects"
    raise NotReady([Problem(run.run_id, "its code is not kept here", hint)])
