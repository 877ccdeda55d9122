"""Metrics and samples of a record as series, of at most so many points."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from runner.control.history.files import RecordFiles
from runner.control.record.launch_record import HOSTS_FOLDER
from runner.control.record.metrics_record import METRICS_FILE
from runner.core.history import LOAD_FIGURES, Metric, Series
from runner.core.wire.codec import parse_json
from runner.core.wire.paths import SAMPLES_FILE
from runner.core.wire.text import natural_key

MAX_NAMES = 100  # of metrics
MAX_POINTS = 2000  # of a series: longer ones are reduced, so that peaks stay
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Texts in the file that are numbers."""


class Point(NamedTuple):
    at: float
    value: float


def read_metrics(
    files: RecordFiles,
) -> tuple[tuple[Metric, ...], int | None, int | None]:
    """Return the metrics, loss and rate first, and the step and the steps of the lowest rank."""
    ranks: dict[str, int] = {}  # the lowest that prints a figure
    found: dict[str, dict[int, list[Point]]] = {}  # by figure and attempt
    units: dict[str, str] = {}
    progress: dict[bool, tuple[int, int, int | None]] = {}

    def take(text: bytes) -> None:
        line: Any = parse_json(text)
        rank = int(line["rank"])
        step = int(line["step"])
        steps = None if line["steps"] is None else int(line["steps"])
        has_steps = steps is not None
        if rank <= progress.get(has_steps, (rank,))[0]:
            progress[has_steps] = rank, step, steps
        for name, value in {"loss": line["loss"], "rate": line["rate"], **line["more"]}.items():
            number = NOT_FINITE.get(value) if isinstance(value, str) else value
            if number is None or rank > ranks.get(name, rank):
                continue
            if rank != ranks.get(name):
                ranks[name] = rank
                found[name] = defaultdict(list)
            found[name][int(line["attempt"])].append(Point(step, float(number)))
            units[name] = str(line["unit"]) if name == "rate" else ""

    files.take_lines(files.folder / METRICS_FILE, "metrics", take)
    if len(found) > MAX_NAMES:
        files.note(METRICS_FILE, f"{MAX_NAMES} of {len(found):,} metrics are read")
    metrics = []
    for name in sorted(found, key=lambda name: (name != "loss", name != "rate", name))[:MAX_NAMES]:
        attempts = sorted(found[name].items())
        finite = [p.value for _, points in attempts for p in points if math.isfinite(p.value)]
        last = attempts[-1][1][-1].value
        metrics.append(
            Metric(
                name=name,
                unit=units[name],
                rank=ranks[name],
                last=last if math.isfinite(last) else None,
                least=min(finite, default=None),
                most=max(finite, default=None),
                by_attempt={attempt: _series(points) for attempt, points in attempts},
            )
        )
    _, step, steps = progress.get(True) or progress.get(False) or (0, None, None)
    return tuple(metrics), step, steps


def read_loads(files: RecordFiles, earliest: float) -> dict[str, dict[str, Series]]:
    """Return each load of each node and GPU; samples before `earliest` are left out."""
    found: dict[str, dict[str, list[Point]]] = {figure.title: {} for figure in LOAD_FIGURES}

    def take(node: str, text: bytes) -> None:
        sample: Any = parse_json(text)
        wall = float(sample["wall"])
        for figure in LOAD_FIGURES if earliest <= wall < math.inf else ():
            for source in sample.get("gpus", ()) if figure.is_gpu else (sample,):
                if source.get(figure.name) is not None:
                    label = f"{node} GPU {int(source['index'])}" if figure.is_gpu else node
                    points = found[figure.title].setdefault(label, [])
                    points.append(Point(wall, float(source[figure.name])))

    paths = files.folder.glob(f"{HOSTS_FOLDER}/*/attempt_*/{SAMPLES_FILE}")
    for path in sorted(paths, key=lambda path: natural_key(str(path))):
        files.take_lines(path, "samples", functools.partial(take, path.parents[1].name))
    return {
        title: {label: _series(points) for label, points in sources.items()}
        for title, sources in found.items()
    }


def _series(points: Sequence[Point]) -> Series:
    """Return a series of at most MAX_POINTS: of neighbours, the least and the greatest."""
    if len(points) > MAX_POINTS:
        width = math.ceil(2 * len(points) / (MAX_POINTS - 2))
        peaks = []
        for start in range(0, len(points) - 1, width):
            some = [p for p in points[start : start + width] if math.isfinite(p.value)]
            if some:
                least = min(some, key=lambda point: point.value)
                most = max(some, key=lambda point: point.value)
                peaks += sorted({least, most}, key=some.index)
        points = [*peaks, points[-1]]
    return Series(
        at=tuple(point.at for point in points),
        values=tuple(point.value if math.isfinite(point.value) else None for point in points),
    )
