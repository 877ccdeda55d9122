"""The verb `export`: the metrics and samples of runs as event files of TensorBoard."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from runner.cli.verb import runs_option, verb
from runner.core.errors import ConfigError, NotReady, Problem, reason_of
from runner.core.history.comparison import set_values
from runner.core.history.run_data import RunData, Series
from runner.core.shell import line
from runner.core.text import counted
from runner.ui.output import note, note_incomplete, show

OWN_FILE = re.compile(r"events\.out\.tfevents\.[0-9]+\.runner|\.runner\.new|\.gitignore")
MAX_POINTS = 5000  # of each scalar; longer ones keep their peaks
NO_FIGURES = "printed no metrics, and no samples are on record"


class Scalar(NamedTuple):
    """One value, as TensorBoard has it."""

    tag: str
    wall: float
    step: int
    value: float


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
@runs_option()
def export(run: tuple[str, ...], tensorboard: str) -> int:
    """Write the metrics, samples and keys of runs on record for TensorBoard.

    Without a RUN, it is the latest one. A repeated export replaces the one before.
    """
    from runner.control.history.named_runs import named_records
    from runner.control.history.run_reader import LOADS, METRICS, read_run

    if not tensorboard:
        raise ConfigError([Problem("export", "needs a folder", "--tensorboard DIR")])
    if importlib.util.find_spec("tensorboard") is None:
        argv = [sys.executable, "-m", "pip", "install", "tensorboard"]
        if importlib.util.find_spec("pip") is None:  # as in an environment that uv made
            argv = ["uv", "pip", "install", "--python", sys.executable, "tensorboard"]
        message = "tensorboard is not installed here"
        raise NotReady([Problem("--tensorboard", message, line(argv))])
    ids = []
    unended = []
    is_written = False
    for record in named_records(run or ("latest",)):
        data = read_run(record, max_points=MAX_POINTS, parts=frozenset({METRICS, LOADS}))
        folder = Path(tensorboard, Path(data.run_id).name)
        ids.append(data.run_id)
        if data.verdict is None:
            unended.append(data.run_id)
        if any(True for _ in scalars_of(data)):
            is_written = True
            show(f"{folder}: {counted(_export(data, folder), 'scalar')}")
        elif data.verdict:
            note(f"{data.run_id} {NO_FIGURES}")
    note_incomplete(unended, "the export")
    if not is_written:
        which = ids[0] if len(ids) == 1 else counted(len(ids), "run")
        message = f"{which} {NO_FIGURES}"
        hint = 'a program makes them with lines such as {"step": 1, "loss": 0.5}: docs/records.md'
        raise NotReady([Problem("export", message, hint)])
    show(f"  {line(['tensorboard', '--logdir', tensorboard])}")
    return 0


def _export(run: RunData, folder: Path) -> int:
    """Write a new event file of a run in place of the one before; return how many scalars it has.

    Its name is new: a TensorBoard that is open keeps the file that had the old one.

    Raises:
        ConfigError: The folder has files of others, or cannot be written.
    """
    from runner.control.record.run_index import ignore_folder

    temp_path = folder / ".runner.new"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = list(folder.iterdir())
        if foreign := sorted(each.name for each in before if not OWN_FILE.fullmatch(each.name)):
            message = f"{folder} has a file that is not from here: {foreign[0]}"
            raise ConfigError([Problem("--tensorboard", message, "name another folder")])
        ignore_folder(folder)
        count = _write(run, temp_path)
        temp_path.replace(folder / f"events.out.tfevents.{time.time_ns()}.runner")
        for path in before:
            if path.suffix == ".runner" and path.stat().st_size:
                os.truncate(path, 0)  # a TensorBoard may stop where a file of it has gone
            elif path.suffix == ".runner":
                path.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):
            temp_path.unlink()
        message = f"cannot write in {folder}: {reason_of(error)}"
        raise ConfigError([Problem("--tensorboard", message)]) from error
    return count


def _write(run: RunData, path: Path) -> int:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.record_writer import RecordWriter

    began = run.launched_at or 0.0
    hparams = hparams_pb(_hparams(run), trial_id=run.run_id, start_time_secs=began)
    is_new = SessionLog(status=SessionLog.START)  # forget the file before
    count = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        writer = RecordWriter(file)
        for head in (
            {"file_version": "brain.Event:2"},
            {"session_log": is_new},
            {"summary": hparams},
        ):
            writer.write(Event(wall_time=began, **head).SerializeToString())
        for scalar in scalars_of(run):
            value = Summary.Value(tag=scalar.tag, simple_value=scalar.value)
            event = Event(wall_time=scalar.wall, step=scalar.step, summary=Summary(value=[value]))
            writer.write(event.SerializeToString())
            count += 1
    return count


def _hparams(run: RunData) -> dict[str, str | float | bool]:
    """Return the keys that were set, but for those of machines; numbers as numbers."""
    from runner.core.history.comparison import default_values

    hparams: dict[str, str | float | bool] = {}
    for key, text in set_values(run, default_values()).items():
        if not key.startswith("cluster."):
            hparams[key] = text
            with contextlib.suppress(ValueError):
                number = float(text)
                hparams[key] = number if math.isfinite(number) else text
    return hparams


def scalars_of(run: RunData) -> Iterator[Scalar]:
    """Yield the metrics of a run's lowest ranks by step, and its samples by second."""
    for metric in run.metrics:
        for _, series in sorted(metric.by_attempt.items()):
            wall = run.launched_at or 0.0
            for at, step, value in zip(series.times, series.steps, series.values, strict=True):
                wall = wall if at is None else at
                if value is not None:
                    yield Scalar(metric.name, wall, step, value)
    for node in run.loads:
        for name, series in node.series.items():
            yield from _samples(run, f"{node.node}/{name}", series)
        for gpu in node.gpus:
            for name, series in gpu.series.items():
                yield from _samples(run, f"{node.node}/gpu{gpu.index}/{name}", series)


def _samples(run: RunData, tag: str, series: Series) -> Iterator[Scalar]:
    known = [*zip(series.times, series.values, strict=True)]
    zero = run.launched_at or next((at for at, _ in known if at is not None), 0.0)
    for at, value in known:
        if at is not None and value is not None:
            yield Scalar(tag, at, max(0, round(at - zero)), value)
