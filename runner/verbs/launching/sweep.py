"""Sweep: the runs of a --multirun one after the other, recorded and summed up as a whole."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner.control.code.snapshot import Snapshot
from runner.control.code.source import open_code_source
from runner.control.history.run_reader import read_run
from runner.control.record.launch_record import CONFIG_FILE, SWEEP_FILE
from runner.control.record.run_store import RunStore
from runner.core.errors import ConfigError
from runner.core.launch_request import LaunchRequest
from runner.core.results import SweepRun
from runner.core.shell import line, this_program
from runner.ui.comparison import render_runs
from runner.ui.layout import terminal_width
from runner.ui.output import note, show
from runner.ui.reports.tables import render_sweep
from runner.verbs.launching.launch_session import run
from runner.verbs.shared.verb import exit_code

STOPPING_CODES = (5, 70, 129, 130, 143)
"""Exit codes after which no other run is started: the user interrupted it, or processes of the last
run may be left, as after a closed terminal."""


def run_sweep(requests: Sequence[LaunchRequest]) -> int:
    """Launch each run; return the first code but 0, or the one that ended the sweep."""
    first = requests[0]
    is_planned = bool(first.spec.dry_run)
    specs = [request.spec for request in requests]
    if not is_planned and any(not (s.pushes_code or s.task.shipped_file) for s in specs):
        message = "an edit of the code reaches later runs of this sweep"
        note(f"{message}; cluster.project=null gives all of them the code of the first")
    folder = first.run_dir.parent / first.sweep.sweep if first.sweep else None
    runs = [SweepRun(r.spec.run_id, r.sweep.changes if r.sweep else ()) for r in requests]
    snapshot: Snapshot | None = None  # the code as it was at the first

    def launch(request: LaunchRequest) -> int:
        nonlocal snapshot
        if snapshot and request.spec.pushes_code and not request.recorded_code:
            snapshot.choose_task(request.spec)
            return run(request, snapshot)
        source = open_code_source(request)
        if isinstance(source, Snapshot):
            snapshot = source
        return run(request, source)

    code = 0
    for index, request in enumerate(requests):
        words = " ".join(runs[index].changes)
        show(f"run {index + 1} of {len(requests)}: {words}", file=sys.stderr)
        started_at = time.monotonic()
        run_code = exit_code(functools.partial(launch, request))
        seconds = round(time.monotonic() - started_at, 3)
        runs[index] = replace(runs[index], exit_code=run_code, seconds=seconds)
        if folder and (request.run_dir / CONFIG_FILE).exists():
            _record_sweep(folder, runs)
        if run_code in STOPPING_CODES:
            code = run_code
            break
        code = code or run_code
    compared = []
    if not is_planned:
        folders = [request.run_dir for request in requests if request.run_dir.is_dir()]
        compared = [read_run(each, is_whole=False) for each in folders]
    if compared:
        show(render_runs(compared, terminal_width(2) - 1), file=sys.stderr)
    names = {each.run_id for each in compared}
    show(render_sweep(runs, is_planned=is_planned, compared=names), file=sys.stderr)
    for request, swept in zip(requests, runs, strict=True):
        if swept.exit_code is None:
            show(f"  {launch_command(request)}", file=sys.stderr)
    if folder and (folder / SWEEP_FILE).is_file():
        show(f"  {this_program()} report {line([folder.name])}", file=sys.stderr)
    return code


def launch_command(request: LaunchRequest) -> str:
    folders = [word for folder in request.config_dirs for word in ("--config-dir", folder)]
    return f"{this_program()} {line([*folders, *request.overrides])}"


def _record_sweep(folder: Path, runs: Sequence[SweepRun]) -> None:
    store = RunStore(folder)
    with contextlib.suppress(ConfigError, OSError):  # a full disk ends no sweep
        if not folder.exists():
            store.make()
        store.write_json(SWEEP_FILE, {"sweep": folder.name, "runs": runs})
