"""The verb `report`: a page of runs, in one file."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from runner.cli.selection import Selection
from runner.cli.verb import parse_duration, verb
from runner.control.atomic_file import replace_file
from runner.control.record.run_index import RUNS_FOLDER
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.protocol.paths import is_run_id
from runner.core.text import counted, format_size
from runner.ui.output import show

REPORT_FILE = "report.html"
MAX_NAMED = 3
"""Beyond so many runs, the name of their report has a hash of their ids."""


@verb(
    "report",
    run="a run id or its beginning, latest, a folder, or a sweep's id; several are compared",
    out="write the page to this file, not to the run's record",
    watch="write it again every so many seconds until the runs have ended; the page follows",
)
def report(
    selection: Selection,
    run: Sequence[str] = (),
    out: str = "",
    watch: str = "",
) -> int:
    """Write what a run did as a page for a browser, in one file.

    Timeline, metrics, load, failure, logs and configuration; several runs side by side.
    """
    from runner.control.history.run_reader import read_run
    from runner.ui.page import page_data, render_page
    from runner.workflows.history.incomplete_records import note_incomplete

    words = run or ("",)
    every_s = max(1, round(parse_duration("--watch", watch))) if watch else 0
    records = list(dict.fromkeys(chain.from_iterable(_records(selection, each) for each in words)))
    runs = [read_run(folder) for folder in records]
    path = Path(out).absolute() if out else report_path(records, [each.run_id for each in runs])
    unended = [each.run_id for each in runs if each.verdict is None]
    page = render_page(page_data(runs), every_s if unended else 0)
    size = write_report(path, page, is_named=bool(out))
    what = f"run {runs[0].run_id}" if len(runs) == 1 else counted(len(runs), "run")
    show(f"{what}: {path}, {format_size(size)}\n  {path.as_uri()}")
    note_incomplete(unended, "the page")
    if every_s and unended:
        _write_until_they_end(records, path, every_s, is_named=bool(out))
    return 0


def _write_until_they_end(
    records: Sequence[Path], path: Path, every_s: int, *, is_named: bool
) -> None:
    """Write the page again and again until its runs have ended, or until Ctrl-C."""
    from runner.control.history.run_reader import read_run
    from runner.ui.page import page_data, render_page

    show(f"  written again every {every_s} s until the end; Ctrl-C ends that, and no run")
    goes_on = True
    while goes_on:
        try:
            time.sleep(every_s)
        except KeyboardInterrupt:
            goes_on = False
        runs = [read_run(folder) for folder in records]
        goes_on = goes_on and any(run.verdict is None for run in runs)
        page = render_page(page_data(runs), every_s if goes_on else 0)
        write_report(path, page, is_named=is_named)


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
