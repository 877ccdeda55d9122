"""Run progress: how far a run on this host is, from the ends of its ranks' logs.

Nothing is kept for it while the run goes on: it is read when somebody asks.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import Iterable, Iterator, Optional, Pattern, Tuple

from runner.core.model.metrics import (
    MAX_RATE,
    Metrics,
    RankProgress,
    compile_pattern,
    may_have_metrics,
    parse_metrics,
)
from runner.core.protocol.paths import METRICS_STREAM, RANK_LOG, STREAMS, RunPaths, rank_source
from runner.host.process import procfs
from runner.host.storage.run_folder import mtime, read_order

TAIL = 64 << 10  # bytes that are read of a log, at its end and at its beginning
MAX_RANKS = 16  # that are looked at, the lowest ones

MIN_SECONDS, MAX_LEFT_S = 10.0, 1e10
"""How long an attempt lasts before its time left is told, and the longest one."""


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
            metrics = _newest_metrics(_metrics_back(path, pattern))
            if metrics is not None and (newest is None or mtime(path) > newest[0]):
                newest = mtime(path), path, metrics
        if newest is not None:
            _, path, metrics = newest
            if metrics.steps is not None:
                pace = _steps_per_s(path, metrics.step, mtime(folder.order), pattern)
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


def _steps_per_s(path: str, step: int, began_at: float, pattern: Optional[Pattern[str]]) -> float:
    """Return how fast the steps of a log came to this one; 0 if that is unknown.

    Its first step may be that of a checkpoint.
    """
    lines = _read(path, 0, TAIL).split(b"\n")[:-1]
    first = next(_parsed(lines, pattern), None)
    seconds = mtime(path) - began_at
    if first is None or seconds < MIN_SECONDS:
        return 0.0
    return max(0, step - first.step) / seconds


def _metrics_back(path: str, pattern: Optional[Pattern[str]]) -> Iterator[Metrics]:
    """Yield the metrics near the end of a log, the newest first."""
    data = _read(path, -TAIL, TAIL)
    lines = data.split(b"\n")[len(data) == TAIL : -1]  # without what is cut, and what is torn
    yield from _parsed(reversed(lines), pattern)


def _parsed(lines: Iterable[bytes], pattern: Optional[Pattern[str]]) -> Iterator[Metrics]:
    for line in lines:
        with contextlib.suppress(ValueError):  # broken
            metrics = parse_metrics(line, pattern) if may_have_metrics(line, pattern) else None
            if metrics is not None:
                yield metrics


def _read(path: str, offset: int, size: int) -> bytes:
    """Return a part of a file, from before its end if `offset` says so; b"" if it has none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a rank may make a FIFO
    except OSError:
        return b""
    try:
        if offset < 0:
            offset = max(0, os.fstat(descriptor).st_size + offset)
        return os.pread(descriptor, size, offset)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
