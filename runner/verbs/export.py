"""The verb `export`: the metrics of runs and their keys as event files of TensorBoard."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from runner.core.errors import ConfigError, NotReady, Problem, reason_of
from runner.core.history import RunData, set_values
from runner.core.shell import line
from runner.core.wire.text import join_some
from runner.ui.output import note, note_incomplete, show
from runner.verbs.shared.verb import runs_option, verb

NO_METRICS = "printed no metrics"


@verb(
    "export",
    examples={"export --tensorboard tb": "the latest run"},
)
@click.option(
    "--tensorboard",
    default="",
    metavar="tb",
    help="write TensorBoard's event files into this folder, below it one for each run",
)
@runs_option
def export(run: tuple[str, ...], tensorboard: str) -> int:
    """Write the metrics and keys of runs on record for TensorBoard.

    Without a RUN, it is the latest one. A repeated export replaces the one before.
    """
    from runner.control.history.run_reader import read_run
    from runner.control.record.run_index import named_records

    if not tensorboard:
        raise ConfigError([Problem("export", "needs a folder", "--tensorboard DIR")])
    if importlib.util.find_spec("tensorboard") is None:
        python = line([sys.executable])
        hint = (
            f"{python} -m pip install tensorboard, or uv pip install --python {python} tensorboard"
        )
        raise NotReady([Problem("--tensorboard", "tensorboard is not installed here", hint)])
    runs = [read_run(record, is_whole=False) for record in named_records(run or ("latest",))]
    measured = [each for each in runs if each.metrics]
    silent = [each.run_id for each in runs if not each.metrics]
    for each in measured:
        folder = Path(tensorboard, each.run_id)
        _export(each, folder)
        show(f"{folder}: {join_some([metric.name for metric in each.metrics])}")
    note_incomplete([each.run_id for each in runs if each.verdict is None], "the export")
    if not measured:
        hint = 'a program makes them with lines such as {"step": 1, "loss": 0.5}: docs/records.md'
        raise NotReady([Problem("export", f"{join_some(silent, 3)} {NO_METRICS}", hint)])
    if silent:
        note(f"{join_some(silent, 3)} {NO_METRICS}")
    show(f"  {line(['tensorboard', '--logdir', tensorboard])}")
    return 0


def _export(run: RunData, folder: Path) -> None:
    """Write a new event file of a run in place of the one before.

    Its name is new: a TensorBoard that is open keeps the file that had the old one.

    Raises:
        ConfigError: It cannot be written.
    """
    from tensorboard.summary.writer.record_writer import RecordWriter

    from runner.control.record.run_index import ignore_folder

    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = list(folder.glob("events.out.tfevents.*.runner"))
        ignore_folder(folder)
        with (folder / f"events.out.tfevents.{time.time_ns()}.runner").open("xb") as file:
            writer = RecordWriter(file)
            for event in _events(run):
                writer.write(event.SerializeToString())
        for path in before:
            if path.stat().st_size:
                os.truncate(path, 0)  # a TensorBoard may stop where a file of it has gone
            else:
                path.unlink()
    except OSError as error:
        message = f"cannot write in {folder}: {reason_of(error)}"
        raise ConfigError([Problem("--tensorboard", message)]) from error


def _events(run: RunData) -> Iterator[Any]:
    """Yield what TensorBoard reads: the keys that were set, and the metrics by step."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    wall = run.launched_at or 0.0
    hparams = hparams_pb(_hparams(run), trial_id=run.run_id, start_time_secs=wall)
    yield Event(wall_time=wall, file_version="brain.Event:2")
    is_new = SessionLog(status=SessionLog.START)  # forget the file before
    yield Event(wall_time=wall, session_log=is_new)
    yield Event(wall_time=wall, summary=hparams)
    for metric in run.metrics:
        for _, series in sorted(metric.by_attempt.items()):
            for step, value in zip(series.at, series.values, strict=True):
                if value is not None:
                    summary = Summary(value=[Summary.Value(tag=metric.name, simple_value=value)])
                    yield Event(wall_time=wall, step=int(step), summary=summary)


def _hparams(run: RunData) -> dict[str, str | float | bool]:
    """Return the keys that were set, but for those of machines; numbers as numbers."""
    hparams: dict[str, str | float | bool] = {}
    for key, text in set_values(run).items():
        if not key.startswith("cluster."):
            hparams[key] = text
            with contextlib.suppress(ValueError):
                number = float(text)
                hparams[key] = number if math.isfinite(number) else text
    return hparams
