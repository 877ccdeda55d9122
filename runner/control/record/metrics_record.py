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
from runner.core.text import counted

METRICS_FILE = "metrics.jsonl"
VERSION = 1
BLOCK = 1 << 20  # bytes that are read at once, and more than a metrics line has
MAX_LINES = 150_000  # of the record: of more, every n-th of each log is kept, and its last

_LINE_END = re.compile(rb"[\r\n]")


class RecordedLog(NamedTuple):
    """A log in a record."""

    attempt: int
    node: str
    path: Path


def recorded_logs(folder: Path) -> Iterator[RecordedLog]:
    """Yield the files among the logs of a record."""
    for path in (*folder.glob("logs/*/*"), *folder.glob("logs/*/attempt_*/*")):
        attempt = path.parent.name.removeprefix("attempt_")
        if path.is_file():
            is_first = path.parent.parent.name == "logs"
            node = path.parent if is_first else path.parent.parent
            if is_first or attempt.isdecimal():
                yield RecordedLog(0 if is_first else int(attempt), node.name, path)


class Stream(NamedTuple):
    """One stream of a rank in one attempt."""

    attempt: int
    rank: int
    stream: str
    node: str


def is_made_of_logs(folder: Path) -> bool:
    """Return whether the record has the metrics of the logs as they are."""
    try:
        made_at = (folder / METRICS_FILE).stat().st_mtime_ns
        return all(log.path.stat().st_mtime_ns <= made_at for log in recorded_logs(folder))
    except OSError:
        return False


def record_metrics(folder: Path, pattern: str) -> str:
    """Make the metrics of a run from its logs; return what to tell of broken lines, or "".

    Those of the first attempt and of the lowest rank come first.

    Raises:
        OSError: They cannot be written.
    """
    paths: dict[Stream, Path] = {}
    for log in recorded_logs(folder):
        if match := RANK_LOG.fullmatch(log.path.name):
            paths[Stream(log.attempt, int(match[1]), match[2], log.node)] = log.path
    logs = _Logs(compile_pattern(pattern))
    for stream in sorted(paths):
        with contextlib.suppress(OSError):
            logs.read(stream, paths[stream])
    if logs.kept:
        spans = _spans(folder)
        replace_file(folder / METRICS_FILE, _record(logs, paths, spans))
    elif paths:
        (folder / METRICS_FILE).touch(mode=0o600)  # so that nobody looks through these logs again
    return logs.broken


class _Logs:
    """The metrics of all logs: of too many, every n-th of each log, and its last."""

    def __init__(self, pattern: re.Pattern[str] | None) -> None:
        self.kept: dict[Stream, list[tuple[int, Metrics]]] = {}  # where each line begins
        self.forms: dict[tuple[int, int], int] = {}  # the highest of each rank of an attempt
        self.broken = ""
        self._broken_count = 0
        self._pattern = pattern
        self._stride = 1
        self._count = 0

    def read(self, stream: Stream, path: Path) -> None:
        """Read a log."""
        kept: list[tuple[int, Metrics]] = []
        last: tuple[int, Metrics] | None = None
        steps = _Steps()
        number = 0
        form = 0
        for offset, metrics in self._metrics(stream, path):
            if metrics.form < form:
                continue
            if metrics.form > form:
                form = metrics.form
                kept.clear()
                steps = _Steps()
            last = offset, steps.counted(metrics)
            if number % self._stride == 0:
                kept.append(last)
                self._count += 1
            if self._count > MAX_LINES:
                self._stride *= 2
                for each in (*self.kept.values(), kept):
                    each[:] = [*each[:-1:2], each[-1]]
                self._count = len(kept) + sum(map(len, self.kept.values()))
            number += 1
        if last is not None:
            if kept[-1:] != [last]:
                kept.append(last)
            self.kept[stream] = kept
            rank = stream.attempt, stream.rank
            self.forms[rank] = max(form, self.forms.get(rank, 0))

    def _metrics(self, stream: Stream, path: Path) -> Iterator[tuple[int, Metrics]]:
        for offset, line in _lines(path, self._pattern):
            try:
                metrics = parse_metrics(line, self._pattern)
            except ValueError as error:
                self._broken_count += 1
                count = counted(self._broken_count, "broken metrics line")
                first = f"rank {stream.rank} on {stream.node}, at byte {offset} of {path.name}"
                told = self.broken.partition(": ")[2] or f"{first}, {error}"
                self.broken = f"{count}, left among the output: {told}"
                continue
            if metrics is not None:
                yield offset, metrics


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
        if metrics.step is None:
            step = self._last + 1
        elif metrics.epoch is None:
            step = metrics.step
        else:
            is_next = self._epoch is not None and metrics.epoch != self._epoch
            if is_next and self._before + metrics.step <= self._last:
                self._before = self._last
            self._epoch = metrics.epoch
            step = self._before + metrics.step
        self._last = step
        return metrics if step == metrics.step else replace(metrics, step=step)


Spans = dict[tuple[int, int], list[float]]


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


def _record(logs: _Logs, paths: dict[Stream, Path], spans: Spans) -> Iterator[bytes]:
    """Yield the lines of the record; the time of each is estimated by its place in the log."""
    for stream, kept in logs.kept.items():
        rank = stream.attempt, stream.rank
        if kept[-1][1].form < logs.forms[rank]:
            continue
        walls = spans.get(rank, [])
        size = max(1, paths[stream].stat().st_size)
        for offset, metrics in kept:
            time = None  # as long as the rank is on
            if len(walls) > 1:
                share = min(1.0, offset / size)
                time = round(min(walls) + (max(walls) - min(walls)) * share, 3)
            origin = {
                "v": VERSION,
                "node": stream.node,
                "attempt": stream.attempt,
                "rank": stream.rank,
                "stream": stream.stream,
                "offset": offset,
                "time": time,
            }
            line = json.dumps({**origin, **metrics.as_data()}, allow_nan=False)
            yield f"{line}\n".encode()
