"""Metrics record: `metrics.jsonl` of a run, made from the logs on this machine.

It is made when a run ends, and by whoever reads a record where the logs have grown since.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from runner.control.atomic_file import replace_file
from runner.core.errors import reason_of
from runner.core.metrics import Metrics, compile_pattern, may_have_metrics, parse_metrics
from runner.core.wire.paths import RANK_LOG

METRICS_FILE = "metrics.jsonl"
VERSION = 1
BLOCK = 1 << 20  # bytes that are read at once, and more than a metrics line has
MAX_LINES = 150_000  # of the record: of more, every n-th of each log is kept, and its last

_LINE_END = re.compile(rb"[\r\n]")


class RecordedLog(NamedTuple):
    attempt: int
    rank: int  # -1 for what is no stream of a rank
    stream: str
    node: str
    path: Path


def recorded_logs(folder: Path) -> Iterator[RecordedLog]:
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


def record_metrics(folder: Path, pattern: str) -> str:
    """Make the metrics of a run from its logs; return why they cannot be written, or "".

    Those of the first attempt and of the lowest rank come first. Of all lines of a rank, those in
    the highest form count.
    """
    logs = sorted(log for log in recorded_logs(folder) if log.rank >= 0)
    compiled = compile_pattern(pattern)
    found: dict[RecordedLog, list[Metrics]] = {}
    forms: dict[tuple[int, int], int] = {}  # the highest of each rank of an attempt
    for log in logs:
        lines = _metrics_of(log.path, compiled)
        if not lines:
            continue
        rank = log.attempt, log.rank
        forms[rank] = max(lines[0].form, forms.get(rank, lines[0].form))
        found[log] = lines
        while sum(map(len, found.values())) > MAX_LINES:
            found = {each: [*kept[:-1:2], kept[-1]] for each, kept in found.items()}
    recorded = []
    for log, lines in found.items():
        if lines[0].form == forms[log.attempt, log.rank]:
            origin = {"v": VERSION, "node": log.node, "attempt": log.attempt, "rank": log.rank}
            for metrics in lines:
                data = {**origin, "stream": log.stream, **metrics.as_data()}
                recorded.append(f"{json.dumps(data, allow_nan=False)}\n".encode())
    try:
        if recorded:
            replace_file(folder / METRICS_FILE, recorded)
        elif logs:  # nobody is to look through these again
            (folder / METRICS_FILE).touch(mode=0o600)
    except OSError as error:
        return f"cannot write the metrics in {folder}: {reason_of(error)}"
    return ""


@dataclass
class _LogMetrics:
    """The lines of a log in one form: of too many every n-th and the last."""

    form: int
    kept: list[Metrics] = field(default_factory=list)
    _count: int = 0
    _stride: int = 1
    _last: int = 0  # the step
    _before: int = 0  # the steps of the epochs before
    _epoch: int | None = None

    def take(self, metrics: Metrics) -> None:
        """Add a line; steps go on where a program begins anew in each epoch, or prints none."""
        step = self._last + 1
        if metrics.step is not None:
            if metrics.epoch not in (None, self._epoch):
                self._epoch = metrics.epoch
                if self._before + metrics.step <= self._last:
                    self._before = self._last
            step = self._before + metrics.step
        self._last = step
        if self._count and (self._count - 1) % self._stride:
            self.kept.pop()  # it was there as the last
        self.kept.append(metrics if metrics.step == step else replace(metrics, step=step))
        self._count += 1
        if len(self.kept) > MAX_LINES:
            self.kept[:] = [*self.kept[:-1:2], self.kept[-1]]
            self._stride *= 2


def _metrics_of(path: Path, pattern: re.Pattern[str] | None) -> list[Metrics]:
    """Return the metrics of a log: of its lines in the highest form."""
    found = _LogMetrics(form=-1)
    for line in _lines(path, pattern):
        metrics = parse_metrics(line, pattern)
        if metrics and metrics.form > found.form:
            found = _LogMetrics(metrics.form)
        if metrics and metrics.form == found.form:
            found.take(metrics)
    return found.kept


def _lines(path: Path, pattern: re.Pattern[str] | None) -> Iterator[bytes]:
    """Yield lines, each form of one that redraws itself; no torn one.

    Output in which no line can have metrics is passed over, and so are endless lines.
    """
    rest = b""
    with contextlib.suppress(OSError), path.open("rb") as file:
        while block := file.read(BLOCK):
            data = rest + block
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if may_have_metrics(data[:end], pattern):
                yield from _LINE_END.split(data[:end])
            rest = data[end:] if end or len(data) <= BLOCK else b""
