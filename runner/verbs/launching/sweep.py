"""Sweep: the runs of a --multirun one after the other, recorded and summed up as a whole."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from runner.control.code.snapshot import Snapshot
from runner.control.code.source import CodeSource
from runner.control.history.run_reader import read_run
from runner.control.record.file_names import CONFIG_FILE, SWEEP_FILE
from runner.control.record.run_store import RunStore
from runner.core.errors import ConfigError
from runner.core.launch_request import LaunchRequest, SweepPlace
from runner.core.model.results import SweepRun
from runner.core.shell import line, this_program
from runner.ui.comparison import render_runs
from runner.ui.layout import terminal_width
from runner.ui.output import note, show
from runner.ui.reports.tables import render_sweep
from runner.verbs.launching.launch_session import run
from runner.verbs.launching.preparation import open_code_source

STOPPING_CODES = (5, 70, 129, 130, 143)
"""Exit codes after which no other run is started: the user interrupted it, or processes of the last
run may be left, as after a closed terminal."""


class SharedLaunch:
    """The launch of each run of a sweep, with the code as it was at the first."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None

    def __call__(self, request: LaunchRequest) -> int:
        """Launch a run; return the exit code, or raise if nothing was started."""
        planned = bool(request.spec.dry_run)
        return run(request) if planned else run(request, self._source(request))

    def _source(self, request: LaunchRequest) -> CodeSource:
        if self._snapshot and request.spec.pushes_code and not request.recorded_code:
            return self._snapshot.for_task(request.spec, Path.cwd())
        source = open_code_source(request)
        if isinstance(source, Snapshot):
            self._snapshot = source
        return source


def run_sweep(requests: Sequence[LaunchRequest], job: Callable[[LaunchRequest], int]) -> int:
    """Do `job` for each run; return the first code but 0, or the one that ended the sweep."""
    is_planned = all(bool(request.spec.dry_run) for request in requests)
    runs = [SweepRun(r.spec.run_id, r.sweep.changes if r.sweep else ()) for r in requests]
    if any(map(_runs_live_code, requests)):
        message = "an edit of the code reaches later runs of this sweep"
        hint = "cluster.project=null gives all of them the code of the first"
        note(f"{message}; {hint}")
    for index, request in enumerate(requests):
        words = " ".join(runs[index].changes)
        show(f"run {index + 1} of {len(requests)}: {words}", file=sys.stderr)
        started_at = time.monotonic()
        code = job(request)
        seconds = round(time.monotonic() - started_at, 3)
        runs[index] = replace(runs[index], exit_code=code, seconds=seconds)
        _record_sweep(request, runs)
        if code in STOPPING_CODES:
            break
    recorded = [request.run_dir for request in requests if request.run_dir.is_dir()]
    if recorded and not is_planned:
        read = [read_run(folder, is_whole=False) for folder in recorded]
        show(render_runs(read, terminal_width(2) - 1), file=sys.stderr)
        compared = {each.run_id for each in read}
        show(render_sweep(runs, is_planned=False, compared=compared), file=sys.stderr)
    else:
        show(render_sweep(runs, is_planned=is_planned), file=sys.stderr)
    left = [r for r, swept in zip(requests, runs, strict=True) if swept.exit_code is None]
    commands = commands_for(left)
    place = requests[0].sweep
    if place is not None and (_sweep_folder(requests[0], place) / SWEEP_FILE).is_file():
        commands.append(f"{this_program()} report {line([place.sweep])}")
    for command in commands:
        show(f"  {command}", file=sys.stderr)
    codes = [swept.exit_code for swept in runs if swept.exit_code]
    return next((code for code in codes if code in STOPPING_CODES), codes[0] if codes else 0)


def commands_for(requests: Sequence[LaunchRequest]) -> list[str]:
    """Return what starts the rest of a sweep: one command if they differ in one key, else each."""
    if not requests:
        return []
    first = requests[0]
    folders = [word for folder in first.config_dirs for word in ("--config-dir", folder)]
    changes = [request.sweep.changes if request.sweep else () for request in requests]
    keys = {tuple(word.partition("=")[0] for word in words) for words in changes}
    words_of_runs = [[*folders, *request.overrides] for request in requests]
    if len(requests) > 1 and len(keys) == 1 and len(changes[0]) == 1:
        values = ",".join(words[0].partition("=")[2] for words in changes)
        both = f"{changes[0][0].partition('=')[0]}={values}"
        words = [both if word == changes[0][0] else word for word in first.overrides]
        words_of_runs = [["-m", *folders, *words]]
    return [f"{this_program()} {line(words)}" for words in words_of_runs]


def _sweep_folder(request: LaunchRequest, place: SweepPlace) -> Path:
    return request.run_dir.parent / place.sweep


def _runs_live_code(request: LaunchRequest) -> bool:
    spec = request.spec
    return not request.spec.dry_run and not spec.pushes_code and not spec.task.shipped_file


def _record_sweep(request: LaunchRequest, runs: Sequence[SweepRun]) -> None:
    """Record the sweep beside its runs, once one of them has a record."""
    if not (request.sweep and (request.run_dir / CONFIG_FILE).exists()):
        return
    store = RunStore(_sweep_folder(request, request.sweep))
    with contextlib.suppress(ConfigError, OSError):  # a full disk ends no sweep
        if not store.folder.exists():
            store.reserve()
        content = {"sweep": request.sweep.sweep, "runs": runs}
        store.write_json(SWEEP_FILE, content)
