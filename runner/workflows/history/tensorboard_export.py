"""TensorBoard export: the metrics and samples of runs as event files, a folder for each run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from runner.control.history.run_reader import LOADS, METRICS, read_run
from runner.control.record.run_index import ignore_folder
from runner.core.errors import ConfigError, Problem, reason_of
from runner.core.history.run_data import RunData, Series
from runner.workflows.history.incomplete_records import no_figures

EVENT_FILE = "events.out.tfevents.0000000001.runner"
"""The name by which TensorBoard finds it, the same each time: an export replaces the one before."""

TEMP_FILE = ".runner.new"
OWN_FILES = frozenset({EVENT_FILE, TEMP_FILE, ".gitignore"})
MAX_POINTS = 5000  # of each scalar; longer ones keep their peaks


class Scalar(NamedTuple):
    """One value, as TensorBoard has it."""

    tag: str
    wall: float
    step: int
    value: float


class Export(NamedTuple):
    """What was written of a run."""

    run_id: str
    scalars: int
    has_ended: bool


def export_runs(records: list[Path], folder: Path) -> list[Export]:
    """Write the scalars of runs below a folder; of a run without any, nothing.

    Raises:
        ConfigError: The folder of a run has files of others, or cannot be written.
        ImportError: tensorboard is not installed.
        NotReady: No run has any here.
    """
    import tensorboard.compat.proto.event_pb2  # noqa: F401 (before anything is written)

    exports, without = list[Export](), list[RunData]()
    for record in records:
        run = read_run(record, max_points=MAX_POINTS, parts=frozenset({METRICS, LOADS}))
        try:
            is_here = any(True for _ in scalars_of(run))
            count = _export(run, folder / Path(run.run_id).name) if is_here else 0
            exports.append(Export(run.run_id, count, run.verdict is not None))
            if not is_here:
                without.append(replace(run, metrics=(), loads=()))
        except OSError as error:
            message = f"cannot write in {folder}: {reason_of(error)}"
            raise ConfigError([Problem("--tensorboard", message)]) from error
    if len(without) == len(exports):
        raise no_figures(without)
    return exports


def _export(run: RunData, folder: Path) -> int:
    """Replace the event file of a run; return how many scalars it has."""
    folder.mkdir(parents=True, exist_ok=True)
    if foreign := sorted({entry.name for entry in folder.iterdir()} - OWN_FILES):
        message = f"{folder} has a file that is not from here: {foreign[0]}"
        raise ConfigError([Problem("--tensorboard", message, "name another folder")])
    ignore_folder(folder)
    temp_path = folder / TEMP_FILE
    try:
        count = _write(scalars_of(run), temp_path)
        temp_path.replace(folder / EVENT_FILE)
    except OSError:
        with contextlib.suppress(OSError):
            temp_path.unlink()
        raise
    return count


def _write(scalars: Iterator[Scalar], path: Path) -> int:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    count = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        writer = RecordWriter(file)
        for scalar in scalars:
            if not count:
                version = Event(wall_time=scalar.wall, file_version="brain.Event:2")
                writer.write(version.SerializeToString())
            value = Summary.Value(tag=scalar.tag, simple_value=scalar.value)
            event = Event(wall_time=scalar.wall, step=scalar.step, summary=Summary(value=[value]))
            writer.write(event.SerializeToString())
            count += 1
    return count


def scalars_of(run: RunData) -> Iterator[Scalar]:
    """Yield the metrics of a run's lowest ranks by step, and its samples by second."""
    for metric in run.metrics:
        for _, series in sorted(metric.by_attempt.items()):
            wall = run.launched_at or 0.0
            for time, step, value in zip(series.times, series.steps, series.values, strict=True):
                wall = wall if time is None else time
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
    zero = run.launched_at or next((time for time, _ in known if time is not None), 0.0)
    for time, value in known:
        if time is not None and value is not None:
            yield Scalar(tag, time, max(0, round(time - zero)), value)
