"""Run progress: how far a run on this host is, from the ends of its ranks' logs.

Nothing is kept for it while the run goes on: it is read when somebody asks.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import Iterator, List, Optional, Sequence, Tuple

from runner.core.model.line_pattern import LinePattern
from runner.core.model.metrics import (
    MAX_RATE,
    LogSizes,
    Metrics,
    RankProgress,
    compile_pattern,
    may_have_metrics,
    parse_metrics,
)
from runner.core.protocol.paths import METRICS_STREAM, RANK_LOG, STREAMS, RunPaths, rank_source
from runner.host.process import procfs
from runner.host.storage.run_folder import mtime, read_order

TAIL = 64 << 10  # bytes that are read of a log, or of the samples of log sizes
MAX_RANKS = 16  # that are looked at, the lowest ones

RATE_WINDOW_S = 900.0  # the time over which the time left is estimated
MAX_SAMPLES, SAMPLE_TAIL = 90, 16 << 10
"""About how many samples of log sizes in that time are looked at, and the bytes before each."""

MAX_LEFT_S = 1e10


def read_progress(folder: RunPaths) -> Optional[RankProgress]:
    """Return how far the lowest rank here is that says how many steps there are.

    Where none does, the lowest that writes metrics lines; None if there is none.
    """
    order = read_order(folder)
    if order is None:
        return None
    pattern = compile_pattern(order.progress_pattern)
    attempt_folder = folder.attempt_folder(order.attempt)
    matches = map(RANK_LOG.fullmatch, procfs.list_names(attempt_folder))
    lowest: Optional[RankProgress] = None
    for rank in sorted({int(match[1]) for match in matches if match})[:MAX_RANKS]:
        newest: Optional[Tuple[float, str, Metrics]] = None
        for stream in (*STREAMS, METRICS_STREAM):
            path = folder.stream_log(order.attempt, rank_source(rank), stream)
            metrics = _newest_metrics(_metrics_back(path, None, pattern))
            if metrics is not None and (newest is None or mtime(path) > newest[0]):
                newest = mtime(path), path, metrics
        if newest is not None:
            _, path, metrics = newest
            if metrics.steps is not None:
                samples = _samples(folder.log_sizes(order.attempt), os.path.basename(path))
                pace = _steps_per_s(path, metrics.step, samples, pattern)
                return _progress(rank, metrics, pace)
            lowest = lowest or _progress(rank, metrics, 0.0)
    return lowest


def _newest_metrics(metrics_back: Iterator[Metrics]) -> Optional[Metrics]:
    """Return the last metrics of a log, of the lines with the steps in all if there are such.

    A single one tells them for those after it.
    """
    newest = next(metrics_back, None)
    if newest is None or newest.steps is not None:
        return newest
    told = [*itertools.islice((each for each in metrics_back if each.steps is not None), 2)]
    return told[0] if len(told) > 1 else newest.with_steps_of(next(iter(told), None))


def _progress(rank: int, metrics: Metrics, steps_per_s: float) -> RankProgress:
    rate, steps, left_s = metrics.rate, metrics.steps, None
    if rate is not None and not 0 <= rate <= MAX_RATE:
        rate = None
    if steps is not None and steps_per_s:
        left_s = min(max(0, steps - metrics.step) / steps_per_s, MAX_LEFT_S)
    return RankProgress(rank, metrics.step, steps, rate, metrics.unit, left_s)


def _steps_per_s(
    path: str, step: int, samples: Sequence[Tuple[float, int]], pattern: Optional[LinePattern]
) -> float:
    """Return how fast the steps of a log came to this one, by its samples; 0 if that is unknown.

    Going back, the steps rise where the program began again: what was before says nothing.
    """
    seen: List[Tuple[float, int]] = []  # when, and the step; the newest first
    for wall, size in samples[:: -max(1, len(samples) // MAX_SAMPLES)]:
        metrics = _newest_metrics(_metrics_back(path, size, pattern, SAMPLE_TAIL))
        if metrics is not None and metrics.step > step:
            break
        if metrics is not None:
            step = metrics.step
            seen.append((wall, step))
    if not seen or seen[0][0] <= seen[-1][0]:
        return 0.0
    return (seen[0][1] - seen[-1][1]) / (seen[0][0] - seen[-1][0])


def _samples(path: str, name: str) -> List[Tuple[float, int]]:
    """Return when a log had which size, of late."""
    _, *lines = _read_before(path, None).split(b"\n")  # the first one is cut
    samples: List[Tuple[float, int]] = []
    for line in lines:
        with contextlib.suppress(ValueError):  # torn
            sample = LogSizes.parse(line)
            if name in sample.sizes:
                samples.append((sample.wall, sample.sizes[name]))
    return [each for each in samples if each[0] > samples[-1][0] - RATE_WINDOW_S]


def _metrics_back(
    path: str, end: Optional[int], pattern: Optional[LinePattern], tail: int = TAIL
) -> Iterator[Metrics]:
    """Yield the metrics near the end of a log, or of its part before `end`, the newest first."""
    data = _read_before(path, end, tail)
    lines = data.split(b"\n")[len(data) == tail : -1]  # without what is cut, and what is torn
    for line in reversed(lines):
        with contextlib.suppress(ValueError):  # broken
            metrics = parse_metrics(line, pattern) if may_have_metrics(line, pattern) else None
            if metrics is not None:
                yield metrics


def _read_before(path: str, end: Optional[int], tail: int = TAIL) -> bytes:
    """Return the end of a file, or of its part before `end`; b"" where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a rank may make a FIFO
    except OSError:
        return b""
    try:
        end = os.fstat(descriptor).st_size if end is None else end
        return os.pread(descriptor, min(tail, end), max(0, end - tail))
    except OSError:
        return b""
    finally:
        os.close(descriptor)
