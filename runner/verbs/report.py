"""The verb `report`: a page of runs, in one file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.wire.text import counted, format_size
from runner.ui.output import note_incomplete, show
from runner.verbs.shared.verb import runs_option, verb

MAX_BEFORE = 20  # of the newest records are searched for the run before


@verb("report", examples={"report latest": "one page", "report A B": "two runs on one page"})
@click.option(
    "--out", default="", metavar="run.html", help="write to this file, not to the run's record"
)
@runs_option
def report(run: tuple[str, ...], out: str) -> int:
    """Write what a run did as a page for a browser, in one file.

    How it ended and why, metrics, nodes and ranks, load, logs; several runs beside each other.
    """
    from runner.control.atomic_file import replace_file
    from runner.control.history.run_reader import read_run
    from runner.control.record import run_index
    from runner.control.record.run_store import RunStore
    from runner.core.outcome.diagnosis import diagnose_stall
    from runner.core.wire.events import Stalled
    from runner.ui.page.page import render_page

    records = run_index.named_records(run or ("latest",))
    path = Path(out).absolute() if out else records[0] / "report.html"
    if len(records) > 1 and not out:
        names = "-".join(record.name for record in records)
        path = records[0].parent / f"report-{names[:150]}.html"
    runs = []
    for record in records:
        data = read_run(record)
        hung = any(isinstance(event.body, Stalled) for event in data.events)
        if hung and data.plans and not data.diagnosis:  # it was stopped by hand
            stall = diagnose_stall(data.plans[-1], RunStore(record).tail)
            data = replace(data, diagnosis=stall)
        runs.append(data)
    before = None
    if len(runs) == 1:
        here = records[0].resolve().parent
        beside = [folder for folder in run_index.records() if folder.parent == here]
        others = (read_run(folder, is_whole=False) for folder in beside[:MAX_BEFORE])
        same = (other for other in others if other.task == runs[0].task)
        began = runs[0].launched_at or 0.0
        before = next((other for other in same if (other.launched_at or 0.0) < began), None)
    page = render_page(runs, before=before)
    try:
        if path.exists() and not path.is_file():
            raise OSError(None, "it is no file")
        replace_file(path, [page.encode()])
    except OSError as error:
        message = f"cannot write {path}: {error.strerror}"
        if out:
            raise ConfigError([Problem("--out", message)]) from error
        raise NotReady([Problem("report", message, "--out FILE names another place")]) from error
    what = f"run {runs[0].run_id}" if len(runs) == 1 else counted(len(runs), "run")
    show(f"{what}, {format_size(path.stat().st_size)}\n  {path.as_uri()}")
    note_incomplete([each.run_id for each in runs if each.verdict is None], "the page")
    return 0
