"""The verb `report`: a page of runs, in one file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.history import RunData
from runner.core.wire.text import counted, format_size
from runner.ui.output import note_incomplete, show
from runner.verbs.shared.verb import parse_duration, runs_option, verb

MAX_BEFORE = 20  # of the newest records are searched for the run before


@verb(
    "report",
    examples={"report latest": "one page", "report latest --watch 5": "a page that follows"},
)
@click.option(
    "--out", default="", metavar="run.html", help="write to this file, not to the run's record"
)
@click.option(
    "--watch",
    default="",
    metavar="5",
    help="write it again every so many seconds until the runs have ended; the page follows",
)
@runs_option
def report(run: tuple[str, ...], out: str, watch: str) -> int:
    """Write what a run did as a page for a browser, in one file.

    How it ended and why, metrics, nodes and ranks, load, logs; several runs beside each other.
    """
    from runner.control.record.run_index import named_records

    every_s = max(1, round(parse_duration("--watch", watch))) if watch else 0
    records = named_records(run or ("latest",))
    path = Path(out).absolute() if out else records[0] / "report.html"
    if len(records) > 1 and not out:
        names = "-".join(record.name for record in records)
        path = records[0].parent / f"report-{names[:150]}.html"
    runs = _write(records, path, every_s, is_named=bool(out))
    unended = [each.run_id for each in runs if each.verdict is None]
    what = f"run {runs[0].run_id}" if len(runs) == 1 else counted(len(runs), "run")
    show(f"{what}, {format_size(path.stat().st_size)}\n  {path.as_uri()}")
    note_incomplete(unended, "the page")
    if every_s and unended:
        show(f"  written again every {every_s} s until the end; Ctrl-C ends that, and no run")
    while every_s and any(each.verdict is None for each in runs):
        try:
            time.sleep(every_s)
        except KeyboardInterrupt:
            every_s = 0  # the last page is not read again
        runs = _write(records, path, every_s, is_named=bool(out))
    return 0


def _write(records: Sequence[Path], path: Path, every_s: int, *, is_named: bool) -> list[RunData]:
    """Write the page of some runs, and return them."""
    from runner.control.atomic_file import replace_file
    from runner.control.history.run_reader import read_run
    from runner.control.record import run_index
    from runner.control.record.run_store import RunStore
    from runner.core.history import default_values
    from runner.core.outcome.diagnosis import diagnose_stall
    from runner.core.wire.events import Stalled
    from runner.ui.page.page import render_page

    runs = []
    for record in records:
        run = read_run(record)
        hung = any(isinstance(event.body, Stalled) for event in run.events)
        if hung and run.plans and not run.diagnosis:  # it was stopped by hand
            stall = diagnose_stall(run.plans[-1], RunStore(record).tail)
            run = replace(run, diagnosis=stall)
        runs.append(run)
    before = None
    if len(runs) == 1:
        here = records[0].resolve().parent
        beside = [folder for folder in run_index.records() if folder.parent == here]
        others = (read_run(folder, is_whole=False) for folder in beside[:MAX_BEFORE])
        same = (other for other in others if other.task == runs[0].task)
        began = runs[0].launched_at or 0.0
        before = next((other for other in same if (other.launched_at or 0.0) < began), None)
    page = render_page(runs, before=before, defaults=default_values(), refresh_s=every_s)
    try:
        if path.exists() and not path.is_file():
            raise OSError(None, "it is no file")
        replace_file(path, [page.encode()])
    except OSError as error:
        message = f"cannot write {path}: {error.strerror}"
        if is_named:
            raise ConfigError([Problem("--out", message)]) from error
        raise NotReady([Problem("report", message, "--out FILE names another place")]) from error
    return runs
