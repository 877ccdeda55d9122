"""Metrics record: `metrics.jsonl` of a run, made from the logs on this machine.

It is a function of these logs alone, so that a run that was followed and one that was downloaded
later have the same lines. When a line was written is taken from its host's samples of log sizes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from runner.core.model.metrics import LogSizes, Metrics, MetricsReader, compile_pattern
from runner.core.protocol.paths import RANK_LOG, SIZES_LOG, SIZES_STREAM, local_name
from runner.core.text import counted

METRICS_FILE = "metrics.jsonl"
VERSION = 1
BLOCK, MAX_SAMPLE = 1 << 16, 1 << 20  # bytes that are read at once, and of one sample of sizes
MAX_SIZE = 32 << 20  # of the record, in bytes

_ATTEMPT = re.compile(r"attempt_([0-9]{1,6})")


class Stream(NamedTuple):
    """One stream of a rank in one attempt."""

    node: str
    attempt: int
    rank: int
    stream: str


class MetricsRecord:
    """The metrics lines of all ranks; `append` writes to a file, and returns whether it could."""

    def __init__(self, folder: Path, append: Callable[[Path, bytes], bool]) -> None:
        self._logs, self._path, self._append = folder / "logs", folder / METRICS_FILE, append
        self._last_recorded: dict[Stream, int] | None = None  # where its last line begins
        self._readers: dict[Stream, MetricsReader] = {}
        self._samples_read: dict[tuple[str, int], int] = {}  # bytes, by node and attempt
        self._backlog: set[str] = set()  # nodes
        self._is_full = False  # then no more is written: a gap would never be filled
        self._size = 0
        self._budget = math.inf  # bytes of logs that are still looked at before it returns
        self._broken_count, self._first_broken = 0, ""
        self._last_broken: dict[Stream, int] = {}

    def forget_position(self) -> None:
        """Begin after what is on record: another process may have written there."""
        self._last_recorded, self._is_full = None, False
        self._backlog.clear()
        self._readers.clear()
        self._samples_read.clear()

    def has_backlog(self, node: str) -> bool:
        """Return whether `advance` has left something of a node for its next call."""
        return node in self._backlog

    def advance(self, node: str, attempt: int, pattern: str) -> None:
        """Record the metrics in the logs of a node, as far as these and their samples are here.

        It looks at one block of them: whoever calls it has others to serve.
        """
        self._budget = BLOCK
        is_done = self._advance(node, attempt, pattern, is_whole=False)
        (self._backlog.discard if is_done else self._backlog.add)(node)

    def complete(self, pattern: str) -> None:
        """Record what is left in all logs; lines that no sample covers have no time."""
        self._budget = math.inf
        for folder in sorted(self._logs.glob("*/")):
            attempts = {0: folder}
            for each in folder.glob("attempt_*/"):
                if match := _ATTEMPT.fullmatch(each.name):
                    attempts[int(match[1])] = each
            for attempt, place in sorted(attempts.items()):
                self._advance(folder.name, attempt, pattern, is_whole=True)
                for path in sorted(place.glob("rank_*")):
                    self._record(folder.name, attempt, path, pattern, math.inf, None)

    @property
    def notes(self) -> list[str]:
        """What to tell the user of lines that are broken, and of those that had no room."""
        notes = []
        if self._broken_count:
            lines = counted(self._broken_count, "broken metrics line")
            notes.append(f"{lines}, left among the output: {self._first_broken}")
        if self._size >= MAX_SIZE:
            size = f"{MAX_SIZE >> 20} MiB"
            notes.append(f"{METRICS_FILE} ends at {size}: later metrics lines are in the logs only")
        return notes

    def _advance(self, node: str, attempt: int, pattern: str, *, is_whole: bool) -> bool:
        """Record up to the newest sample; unless logs are whole, up to one they do not reach.

        Return whether that was done, within the budget.
        """
        folder = self._logs / node / local_name(attempt, "")
        path = folder / f"{SIZES_LOG}.{SIZES_STREAM}"
        for sample, end in _samples(path, self._samples_read.get((node, attempt), 0)):
            sizes = {folder / name: size for name, size in sample.sizes.items() if _is_ranks(name)}
            if not is_whole and any(_size(log) < size for log, size in sizes.items()):
                return True
            for log, size in sizes.items():
                if not self._record(node, attempt, log, pattern, size, sample.wall):
                    return False
            self._samples_read[node, attempt] = end
        return True

    def _record(
        self,
        node: str,
        attempt: int,
        path: Path,
        pattern: str,
        end: float,
        wall: float | None,
    ) -> bool:
        """Record the lines of one log that end before `end`, as written at `wall`.

        Return whether all were recorded within the budget.
        """
        if self._last_recorded is None:
            self._last_recorded = self._read_positions()
        match = RANK_LOG.fullmatch(path.name)
        if match is None or self._is_full:
            return True
        stream = Stream(node, attempt, int(match[1]), match[2])
        last = self._last_recorded.get(stream, -1)
        reader = self._readers.get(stream)
        if reader is None:
            on_broken = functools.partial(self._on_broken, stream)
            reader = MetricsReader(compile_pattern(pattern), max(0, last), on_broken)
            self._readers[stream] = reader
        for data in _blocks(path, reader.position, end):
            if self._budget <= 0:
                return False
            self._budget -= len(data)
            found = [(offset, each) for offset, each in reader.feed(data) if offset > last]
            lines = [_line(stream, offset, wall, metrics) for offset, metrics in found]
            if lines and not self._write("".join(lines).encode()):
                break
        return True

    def _write(self, data: bytes) -> bool:
        """Append lines to the record; return whether there is room for more."""
        self._size += len(data)
        self._is_full = not self._append(self._path, data) or self._size >= MAX_SIZE
        return not self._is_full

    def _on_broken(self, stream: Stream, offset: int, reason: str) -> None:
        if offset <= self._last_broken.get(stream, -1):
            return
        self._last_broken[stream] = offset
        if not self._broken_count:
            name = f"rank {stream.rank} on {stream.node}"
            self._first_broken = f"{name}, at byte {offset} of rank_{stream.rank}.{stream.stream}, "
            self._first_broken += reason
        self._broken_count += 1

    def _read_positions(self) -> dict[Stream, int]:
        """Return where the last recorded line of each stream begins; end a line that was torn."""
        positions: dict[Stream, int] = {}
        try:
            with self._path.open("rb") as file:
                line = b"\n"
                for line in file:
                    with contextlib.suppress(ValueError, KeyError, TypeError):
                        data = json.loads(line)
                        stream = Stream(*(data[name] for name in Stream._fields))
                        positions[stream] = max(positions.get(stream, -1), int(data["offset"]))
        except OSError:  # none yet
            return positions
        if not line.endswith(b"\n"):
            self._append(self._path, b"\n")
        self._size = _size(self._path)
        self._is_full = self._size >= MAX_SIZE
        return positions


def _line(stream: Stream, offset: int, wall: float | None, metrics: Metrics) -> str:
    origin = {**stream._asdict(), "offset": offset, "time": wall}
    return json.dumps({"v": VERSION, **origin, **metrics.as_data()}, allow_nan=False) + "\n"


def _is_ranks(name: str) -> bool:
    return RANK_LOG.fullmatch(name) is not None


def _samples(path: Path, position: int) -> Iterator[tuple[LogSizes, int]]:
    """Yield the whole samples from a position on, and where each ends."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(position)
        while (line := file.readline(MAX_SAMPLE)).endswith(b"\n"):
            position += len(line)
            with contextlib.suppress(ValueError):  # torn
                yield LogSizes.parse(line), position


def _blocks(path: Path, position: int, end: float) -> Iterator[bytes]:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(position)
        while position < end and (data := file.read(int(min(BLOCK, end - position)))):
            position += len(data)
            yield data


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
