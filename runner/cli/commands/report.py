"""The verb `report`: a page of runs, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from runner.cli.selection import Selection
from runner.cli.verb import verb
from runner.core.errors import ConfigError, Problem
from runner.core.model.facts import MAX_PORT
from runner.core.protocol.paths import is_run_id
from runner.core.shell import this_program
from runner.core.text import counted, format_size
from runner.ui.output import show


@verb(
    "report",
    run="a run id or its beginning, latest, a folder, or a sweep's id; several are compared",
    out="write the page to this file, not to the run's record",
    serve="show it live on 127.0.0.1; with --cluster and no run, the list of all runs there",
    port="with --serve: the port; by default a free one",
)
def report(
    selection: Selection,
    run: Sequence[str] = (),
    out: str = "",
    serve: bool = False,
    port: str = "",
) -> int:
    """Write what a run did as a page for a browser, in one file.

    Timeline, metrics, load, failure, logs and configuration; several runs side by side.
    """
    from runner.control.history.run_reader import read_run
    from runner.ui.page import page_data, render_page
    from runner.workflows.history.incomplete_records import note_incomplete
    from runner.workflows.history.report_file import report_path, write_report

    words = run or ("",)
    if serve:
        return _serve(selection, run, out, port)
    if port:
        hint = f"{this_program()} report --serve --port {port}"
        raise ConfigError([Problem("--port", "is for --serve", hint)])
    records = list(dict.fromkeys(chain.from_iterable(_records(selection, each) for each in words)))
    runs = [read_run(folder) for folder in records]
    path = Path(out).absolute() if out else report_path(records, [each.run_id for each in runs])
    size = write_report(path, render_page(page_data(runs)), is_named=bool(out))
    what = f"run {runs[0].run_id}" if len(runs) == 1 else counted(len(runs), "run")
    show(f"{what}: {path}, {format_size(size)}\n  {path.as_uri()}")
    note_incomplete([each.run_id for each in runs if each.verdict is None], "the page")
    return 0


def _serve(selection: Selection, run: Sequence[str], out: str, port: str) -> int:
    """Serve the live page of a run, or of all runs of a cluster."""
    from runner.control.history.named_runs import named_records
    from runner.workflows.live.serve import serve_cluster, serve_run

    number = _port_number(port)
    word = "".join(run)
    records = named_records([word]) if len(run) == 1 and not is_run_id(word) else []
    if len(run) > 1 or len(records) > 1 or out:
        message = "shows one run, or all of a cluster, and writes no file"
        hint = "leave out --serve for a file, also of several runs"
        raise ConfigError([Problem("--serve", message, hint)])
    if selection.names_cluster and not run:
        return serve_cluster(selection.contact(), number)
    by_record = selection.contact_by_record(records[0]) if records else None
    return serve_run(by_record or selection.contact_for_run(word), number)


def _port_number(text: str) -> int:
    """Return a port, 0 for a free one, or raise ConfigError."""
    if text and not (text.isdecimal() and 0 < int(text) <= MAX_PORT):
        message = f"must be a port from 1 to {MAX_PORT}, not {text!r}"
        raise ConfigError([Problem("--port", message, "leave it out for a free one")])
    return int(text or 0)


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
