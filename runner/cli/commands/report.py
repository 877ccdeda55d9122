"""The verb `report`: a page of runs, in one file."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import click

from runner.cli.selection import Selection
from runner.cli.verb import parse_duration, runs_option, verb
from runner.control.atomic_file import replace_file
from runner.control.record.run_index import RUNS_FOLDER
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.history.run_data import RunData
from runner.core.protocol.paths import is_run_id
from runner.core.text import counted, format_size
from runner.ui.output import note_incomplete, show

REPORT_FILE = "report.html"
MAX_BEFORE = 20
"""So many of the newest records are searched for the run before."""

MAX_NAMED = 3
"""Beyond so many runs, the name of their report has a hash of their ids."""


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
@runs_option()
def report(selection: Selection, run: Sequence[str], out: str, watch: str) -> int:
    """Write what a run did as a page for a browser, in one file.

    How it ended and why, metrics, nodes and ranks, load, logs; several runs beside each other.
    """
    words = run or ("",)
    every_s = max(1, round(parse_duration("--watch", watch))) if watch else 0
    records = list(dict.fromkeys(chain.from_iterable(_records(selection, each) for each in words)))
    page, runs = _page(records, every_s)
    path = Path(out).absolute() if out else report_path(records, [each.run_id for each in runs])
    size = write_report(path, page, is_named=bool(out))
    what = f"run {runs[0].run_id}" if len(runs) == 1 else counted(len(runs), "run")
    show(f"{what}: {path}, {format_size(size)}\n  {path.as_uri()}")
    unended = [each.run_id for each in runs if each.verdict is None]
    note_incomplete(unended, "the page")
    if every_s and unended:
        show(f"  written again every {every_s} s until the end; Ctrl-C ends that, and no run")
        while any(each.verdict is None for each in runs):
            try:
                time.sleep(every_s)
            except KeyboardInterrupt:
                page, _ = _page(records, 0)
                write_report(path, page, is_named=bool(out))
                break
            page, runs = _page(records, every_s)
            write_report(path, page, is_named=bool(out))
    return 0


def _page(records: Sequence[Path], every_s: int) -> tuple[str, list[RunData]]:
    """Return the page of some records, and what was read of them.

    A browser reads it again every `every_s`, if that is not 0 and one of the runs has not ended.
    """
    from runner.control.history.run_reader import read_run
    from runner.core.history.comparison import default_values
    from runner.ui.page import render_page

    runs = [_with_stall(read_run(folder), folder) for folder in records]
    before = _run_before(records[0], runs[0]) if len(runs) == 1 else None
    is_on = any(run.verdict is None for run in runs)
    page = render_page(
        runs,
        before=before,
        defaults=default_values(),
        refresh_s=every_s if is_on else 0,
    )
    return page, runs


def _with_stall(run: RunData, folder: Path) -> RunData:
    """Return a run that hung with the diagnosis of that, also if it was stopped by hand."""
    from runner.control.record.run_store import RunStore
    from runner.core.outcome.diagnosis import diagnose_stall
    from runner.core.protocol.events import Stalled

    hung = any(isinstance(event.body, Stalled) for event in run.events)
    if not hung or run.diagnosis or not run.plans:
        return run
    return replace(run, diagnosis=diagnose_stall(run.plans[-1], RunStore(folder).tail))


def _run_before(record: Path, run: RunData) -> RunData | None:
    """Return the last run of the same task that was launched before a run, from its folder."""
    from runner.control.history.run_reader import METRICS, read_run
    from runner.control.record import run_index

    beside = [folder for folder in run_index.records() if folder.parent == record.resolve().parent]
    for folder in beside[:MAX_BEFORE]:
        other = read_run(folder, parts=frozenset({METRICS}))
        is_earlier = (other.launched_at or 0.0) < (run.launched_at or 0.0)
        if is_earlier and other.task == run.task:
            return other
    return None


def _records(selection: Selection, word: str) -> list[Path]:
    """Return the records that a word means; that of a run that is not here is fetched."""
    from runner.control.history.named_runs import named_records
    from runner.control.record import run_index

    is_elsewhere = is_run_id(word) and not run_index.record_folder(word)
    if word and not (is_elsewhere and selection.names_cluster):
        return named_records([word])
    return [_fetched_record(selection, word)]


def _fetched_record(selection: Selection, run: str) -> Path:
    """Return the record of a run, which is fetched from its hosts if it is not here."""
    from runner.control.record.file_names import PLAN_FILE
    from runner.workflows.pull import pull_run
    from runner.workflows.runs.discovery import open_run_finder
    from runner.workflows.runs.found_run import FoundRun

    composed = selection.contact_for_run(run)
    if (composed.run_dir / PLAN_FILE).is_file():
        return composed.run_dir
    with open_run_finder(composed, "report") as finder:
        found = FoundRun(composed, finder)
        pull_run(found)
    return found.store.folder


def report_path(records: Sequence[Path], run_ids: Sequence[str]) -> Path:
    """Return where the report of these runs goes: to the record of one, or beside several."""
    if len(records) == 1:
        return records[0] / REPORT_FILE
    name = "-".join(run_ids)
    if len(run_ids) > MAX_NAMED:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{len(run_ids)}-runs-{digest}"
    here = Path.cwd() / RUNS_FOLDER
    return (here if here.is_dir() else records[0].parent) / f"report-{name}.html"


def write_report(path: Path, page: str, *, is_named: bool) -> int:
    """Write a page; return its size in bytes.

    Raises:
        ConfigError: It cannot be written where the user named a file.
        NotReady: It cannot be written in the record.
    """
    data = page.encode()
    try:
        if path.exists() and not path.is_file():
            raise OSError(None, "it is no file")
        replace_file(path, [data])
    except OSError as error:
        message = f"cannot write {path}: {error.strerror}"
        if is_named:
            raise ConfigError([Problem("--out", message)]) from error
        hint = "--out FILE names another place"
        raise NotReady([Problem("report", message, hint)]) from error
    return len(data)
