"""Run progress: how far a run on this host is, from the ends of its ranks' logs.

Nothing is kept for it while the run goes on: it is read when somebody asks.
"""

from __future__ import annotations

import os
from typing import Iterator, List, Optional, Pattern, Tuple

from runner.core.wire.metrics import (
    MAX_RATE,
    LatestMetrics,
    Metrics,
    RankProgress,
    compile_pattern,
    may_have_metrics,
    parse_metrics,
    seconds_left,
)
from runner.core.wire.paths import METRICS_STREAM, RANK_LOG, STREAMS, RunPaths, rank_source
from runner.host.process import procfs
from runner.host.storage.run_folder import mtime, read_order

TAIL = 64 << 10  # bytes that are read of a log, at its end and at its beginning
MAX_RANKS = 16  # that are looked at, the lowest ones

MIN_SECONDS = 10.0  # that an attempt lasts before its time left is told
MAX_LEFT_S = 1e10


def read_progress(folder: RunPaths) -> Optional[RankProgress]:
    """Return how far the lowest rank here is that says how many steps there are.

    Where none does, the lowest that prints its steps; None if there is none.
    """
    order = read_order(folder)
    if order is None:
        return None
    pattern = compile_pattern(order.progress_pattern)
    matches = map(RANK_LOG.fullmatch, procfs.list_names(folder.attempt_folder(order.attempt)))
    lowest: Optional[RankProgress] = None
    for rank in sorted({int(match[1]) for match in matches if match})[:MAX_RANKS]:
        found: List[Tuple[int, float, str, Metrics]] = []
        for stream in (*STREAMS, METRICS_STREAM):
            path = folder.stream_log(order.attempt, rank_source(rank), stream)
            data = _read(path, is_end=True)
            latest = LatestMetrics()
            for metrics in _parsed(_lines(data)[len(data) == TAIL :], pattern):
                latest.take(metrics)
            if latest.metrics is not None:
                found.append((latest.metrics.form, mtime(path), path, latest.metrics))
        if found:
            _, _, path, metrics = max(found, key=lambda each: each[:2])
            begun = _parsed(_lines(_read(path)), pattern)
            first = next((each.step for each in begun if each.form == metrics.form), None)
            progress = _progress(rank, metrics, first, mtime(path) - mtime(folder.order))
            if progress.steps is not None:
                return progress
            lowest = lowest or progress
    return lowest


def _progress(rank: int, metrics: Metrics, first: Optional[int], seconds: float) -> RankProgress:
    """Return the progress of a rank whose first step, perhaps of a checkpoint, is so long ago."""
    step = metrics.step or 0
    left_s = None
    if first is not None and seconds >= MIN_SECONDS:
        left_s = seconds_left(metrics.steps, step, step - first, seconds)
    return RankProgress(
        rank=rank,
        step=step,
        steps=metrics.steps,
        rate=metrics.rate if metrics.rate is not None and 0 <= metrics.rate <= MAX_RATE else None,
        unit=metrics.unit,
        left_s=None if left_s is None else min(left_s, MAX_LEFT_S),
    )


def _lines(data: bytes) -> List[bytes]:
    """Return the whole lines, and the forms of one that redraws itself."""
    return data.replace(b"\r", b"\n").split(b"\n")[:-1]


def _parsed(lines: List[bytes], pattern: Optional[Pattern[str]]) -> Iterator[Metrics]:
    """Yield the metrics that have a step."""
    for line in lines:
        metrics = parse_metrics(line, pattern) if may_have_metrics(line, pattern) else None
        if metrics is not None and metrics.step is not None:
            yield metrics


def _read(path: str, *, is_end: bool = False) -> bytes:
    """Return the beginning or the end of a file; b"" if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a rank may make a FIFO
    except OSError:
        return b""
    try:
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, TAIL, max(0, size - TAIL) if is_end else 0)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
