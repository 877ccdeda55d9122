"""Run progress: how far a run on this host is, from the ends of its ranks' logs.

Nothing is kept for it while the run goes on: it is read when somebody asks.
"""

from __future__ import annotations

import contextlib
import os
from typing import Iterable, Iterator, List, Optional, Pattern, Tuple

from runner.core.model.metrics import (
    MAX_RATE,
    LatestMetrics,
    Metrics,
    RankProgress,
    compile_pattern,
    may_have_metrics,
    parse_metrics,
    seconds_left,
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

    Where none does, the lowest that prints its steps; None if there is none.
    """
    order = read_order(folder)
    if order is None:
        return None
    pattern = compile_pattern(order.progress_pattern)
    matches = map(RANK_LOG.fullmatch, procfs.list_names(folder.attempt_folder(order.attempt)))
    lowest: Optional[RankProgress] = None
    for rank in sorted({int(match[1]) for match in matches if match})[:MAX_RANKS]:
        newest: Optional[Tuple[int, float, str, Metrics]] = None
        for stream in (*STREAMS, METRICS_STREAM):
            path = folder.stream_log(order.attempt, rank_source(rank), stream)
            data = _read(path, -TAIL, TAIL)
            lines = _lines(data)[len(data) == TAIL : -1]  # without what is cut, and what is torn
            latest = LatestMetrics()
            for each in _parsed(lines, pattern):
                latest.take(each)
            if latest.metrics is not None:
                found = latest.metrics.form, mtime(path), path, latest.metrics
                newest = found if newest is None else max(newest, found, key=lambda each: each[:2])
        if newest is not None:
            progress = _progress(rank, newest[2], newest[3], mtime(folder.order), pattern)
            if progress.steps is not None:
                return progress
            lowest = lowest or progress
    return lowest


def _progress(
    rank: int, path: str, metrics: Metrics, began_at: float, pattern: Optional[Pattern[str]]
) -> RankProgress:
    """Return the progress that a log shows; its first step may be that of a checkpoint."""
    step = metrics.step or 0
    begun = _parsed(_lines(_read(path, 0, TAIL))[:-1], pattern)
    first = next((each.step for each in begun if each.form == metrics.form), None)
    seconds = mtime(path) - began_at
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
    """Return lines, and the forms of one that redraws itself."""
    return data.replace(b"\r", b"\n").split(b"\n")


def _parsed(lines: Iterable[bytes], pattern: Optional[Pattern[str]]) -> Iterator[Metrics]:
    """Yield the metrics that have a step."""
    for line in lines:
        with contextlib.suppress(ValueError):  # broken
            metrics = parse_metrics(line, pattern) if may_have_metrics(line, pattern) else None
            if metrics is not None and metrics.step is not None:
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
