"""Metrics record: `metrics.jsonl` of a run, made from the logs on this machine.

It is made anew each time, whole or not at all: when a run ends, and by whoever reads a record where
there is none or the logs have grown since.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from runner.control.atomic_file import replace_file
from runner.core.model.metrics import Metrics, compile_pattern, may_have_metrics, parse_metrics
from runner.core.protocol.events import RankExited, RankStarted, parse
from runner.core.protocol.paths import EVENTS_FILE, RANK_LOG

METRICS_FILE = "metrics.jsonl"
VERSION = 1
BLOCK = 1 << 20  # bytes that are read at once, and more than a metrics line has
MAX_LINES = 150_000  # of the record: of more, every n-th of each log is kept, and its last

_LINE_END = re.compile(rb"[\r\n]")


class RecordedLog(NamedTuple):
    """A log in a record."""

    attempt: int
    rank: int  # -1 for what is no stream of a rank
    stream: str
    node: str
    path: Path


def recorded_logs(folder: Path) -> Iterator[RecordedLog]:
    """Yield the files among the logs of a record."""
    for path in (*folder.glob("logs/*/*"), *folder.glob("logs/*/attempt_*/*")):
        node, *attempt = path.relative_to(folder / "logs").parts[:-1]
        number = attempt[0].removeprefix("attempt_") if attempt else "0"
        if path.is_file() and number.isdecimal():
            match = RANK_LOG.fullmatch(path.name)
            rank = int(match[1]) if match else -1
            yield RecordedLog(int(number), rank, match[2] if match else "", node, path)


def is_made_of_logs(folder: Path) -> bool:
    """Return whether the record has the metrics of the logs as they are."""
    try:
        made_at = (folder / METRICS_FILE).stat().st_mtime_ns
        return all(log.path.stat().st_mtime_ns <= made_at for log in recorded_logs(folder))
    except OSError:
        return False


def record_metrics(folder: Path, pattern: str) -> None:
    """Make the metrics of a run from its logs.

    Those of the first attempt and of the lowest rank come first.

    Raises:
        OSError: They cannot be written.
    """
    logs = sorted(log for log in recorded_logs(folder) if log.rank >= 0)
    found = _Found(compile_pattern(pattern))
    for log in logs:
        with contextlib.suppress(OSError):
            found.read(log)
    if found.kept:
        replace_file(folder / METRICS_FILE, _record(found.kept, _spans(folder)))
    elif logs:
        (folder / METRICS_FILE).touch(mode=0o600)  # so that nobody looks through these logs again


Kept = dict[RecordedLog, list[tuple[int, Metrics]]]  # where each line begins
Spans = dict[tuple[int, int], list[float]]


class _Found:
    """The metrics of all logs: of too many, every n-th of each log, and its last."""

    def __init__(self, pattern: re.Pattern[str] | None) -> None:
        self.kept: Kept = {}
        self._pattern = pattern
        self._forms: dict[tuple[int, int], int] = {}  # the highest of each rank of an attempt
        self._stride = 1
        self._count = 0

    def read(self, log: RecordedLog) -> None:
        """Read a log; of all lines of a rank, those in the highest form count."""
        rank = log.attempt, log.rank
        steps = _Steps()
        number = 0
        for offset, line in _lines(log.path, self._pattern):
            metrics = parse_metrics(line, self._pattern)
            form = self._forms.get(rank, -1)
            if metrics is None or metrics.form < form:
                continue
            if metrics.form > form:
                self._forms[rank] = metrics.form
                self.kept = {k: v for k, v in self.kept.items() if (k.attempt, k.rank) != rank}
                steps = _Steps()
                number = 0
            kept = self.kept.setdefault(log, [])
            if number and (number - 1) % self._stride:
                kept.pop()  # it was there as the last
            kept.append((offset, steps.counted(metrics)))
            number += 1
            self._count += 1
            if self._count > MAX_LINES:
                self._thin()

    def _thin(self) -> None:
        """Drop lines if there are too many; those that `read` dropped do not count."""
        self._count = sum(map(len, self.kept.values()))
        if self._count > MAX_LINES:
            self._stride *= 2
            for kept in self.kept.values():
                kept[:] = [*kept[:-1:2], kept[-1]]
            self._count = sum(map(len, self.kept.values()))


def _lines(path: Path, pattern: re.Pattern[str] | None) -> Iterator[tuple[int, bytes]]:
    """Yield lines and where they begin, each form of one that redraws itself; no torn one.

    Output in which no line can have metrics is passed over, and so are endless lines.
    """
    with path.open("rb") as file:
        start = 0
        rest = b""
        while block := file.read(BLOCK):
            data = rest + block
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if may_have_metrics(data[:end], pattern):
                offset = start
                for line in _LINE_END.split(data[:end]):
                    if line:
                        yield offset, line
                    offset += len(line) + 1
            if not end and len(data) > BLOCK:
                end = len(data)
            start += end
            rest = data[end:]


class _Steps:
    """The steps of a log; they go on where a program begins anew in each epoch, or prints none."""

    def __init__(self) -> None:
        self._last = 0
        self._before = 0  # the epoch
        self._epoch: int | None = None

    def counted(self, metrics: Metrics) -> Metrics:
        """Return the metrics of a line with its step in the run."""
        step = self._last + 1 if metrics.step is None else metrics.step
        if metrics.step is not None and metrics.epoch is not None:
            is_next = self._epoch not in (None, metrics.epoch)
            if is_next and self._before + step <= self._last:
                self._before = self._last
            self._epoch = metrics.epoch
            step += self._before
        self._last = step
        return metrics if step == metrics.step else replace(metrics, step=step)


def _spans(folder: Path) -> Spans:
    """Return when the ranks of each attempt started, and if they have ended, when that was."""
    spans: Spans = {}
    with contextlib.suppress(OSError), (folder / EVENTS_FILE).open("rb") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                event = parse(line.decode(errors="replace")) if b'"rank_' in line else None
                if event and isinstance(event.body, (RankStarted, RankExited)):
                    spans.setdefault((event.attempt, event.body.rank), []).append(event.wall)
    return spans


def _record(found: Kept, spans: Spans) -> Iterator[bytes]:
    """Yield the lines of the record; the time of each is estimated by its place in the log."""
    for log, kept in found.items():
        walls = spans.get((log.attempt, log.rank), [])
        size = max(1, log.path.stat().st_size)
        for offset, metrics in kept:
            time = None  # as long as the rank is on
            if len(walls) > 1:
                share = min(1.0, offset / size)
                time = round(min(walls) + (max(walls) - min(walls)) * share, 3)
            data = {
                "v": VERSION,
                "node": log.node,
                "attempt": log.attempt,
                "rank": log.rank,
                "stream": log.stream,
                "offset": offset,
                "time": time,
                **metrics.as_data(),
            }
            yield f"{json.dumps(data, allow_nan=False)}\n".encode()
