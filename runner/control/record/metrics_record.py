"""Metrics record: `metrics.jsonl` of a run, made from the logs on this machine.

A run that was followed and one that was downloaded later have the same lines; only the former have
the times at which the launch read them. Of more lines than fit, the oldest are thinned the most.
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

from runner.control.atomic_file import replace_file
from runner.core.model.metrics import Metrics, MetricsReader, compile_pattern
from runner.core.protocol.paths import RANK_LOG
from runner.core.protocol.remote_files import CHUNK
from runner.core.text import counted

METRICS_FILE = "metrics.jsonl"
VERSION = 1
BLOCK = 1 << 16  # bytes that are read at once
MAX_ADVANCE = CHUNK + BLOCK  # bytes of a log that are looked at when a piece of it has come
MAX_SIZE = 32 << 20  # of the record, in bytes: then every second line goes

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
        self._is_failed = False  # then no more is written: a gap would never be filled
        self._size = 0
        self._thinned_size = 0
        self._broken_count, self._first_broken = 0, ""
        self._last_broken: dict[Stream, int] = {}

    def forget_position(self) -> None:
        """Begin after what is on record: another process may have written there."""
        self._last_recorded = None
        self._is_failed = False
        self._readers.clear()

    def advance(self, node: str, attempt: int, name: str, pattern: str, wall: float | None) -> None:
        """Record the metrics in a log of which a piece has come, as read at `wall`.

        It looks at little more than the piece: whoever calls it has others to serve.
        """
        self._record(node, attempt, self._logs / node / name, pattern, wall, MAX_ADVANCE)

    def complete(self, pattern: str) -> None:
        """Record what is left in all logs; these lines have no time."""
        if self._is_failed:
            self.forget_position()
        for folder in sorted(self._logs.glob("*/")):
            attempts = {0: folder}
            for each in folder.glob("attempt_*/"):
                if match := _ATTEMPT.fullmatch(each.name):
                    attempts[int(match[1])] = each
            for attempt, place in sorted(attempts.items()):
                for path in sorted(place.glob("rank_*")):
                    self._record(folder.name, attempt, path, pattern, None, math.inf)

    @property
    def broken(self) -> str:
        """What to tell the user of lines that are broken, "" for none."""
        if not self._broken_count:
            return ""
        lines = counted(self._broken_count, "broken metrics line")
        return f"{lines}, left among the output: {self._first_broken}"

    def _record(
        self,
        node: str,
        attempt: int,
        path: Path,
        pattern: str,
        wall: float | None,
        max_bytes: float,
    ) -> None:
        """Record the next lines of one log, as read at `wall`."""
        if self._last_recorded is None:
            self._last_recorded = self._read_positions()
        match = RANK_LOG.fullmatch(path.name)
        if match is None or self._is_failed:
            return
        stream = Stream(node, attempt, int(match[1]), match[2])
        last = self._last_recorded.get(stream, -1)
        reader = self._readers.get(stream)
        if reader is None:
            on_broken = functools.partial(self._on_broken, stream)
            reader = MetricsReader(compile_pattern(pattern), max(0, last), on_broken)
            self._readers[stream] = reader
        for data in _blocks(path, reader.position, reader.position + max_bytes):
            found = [(offset, each) for offset, each in reader.feed(data) if offset > last]
            lines = [_line(stream, offset, wall, metrics) for offset, metrics in found]
            if lines and not self._write("".join(lines).encode()):
                break

    def _write(self, data: bytes) -> bool:
        """Append lines to the record; return whether that went well."""
        self._size += len(data)
        self._is_failed = not self._append(self._path, data)
        if self._size >= max(MAX_SIZE, 2 * self._thinned_size):
            self._thin()
        return not self._is_failed

    def _thin(self) -> None:
        """Remove every second line of each stream, but not its last."""
        kept: list[bytes] = []
        removes_next: dict[bytes, bool] = {}
        with contextlib.suppress(OSError):  # the file grows on
            for line in reversed(self._path.read_bytes().splitlines(keepends=True)):
                stream = line.partition(b', "offset": ')[0]
                is_removed = removes_next.get(stream, False)
                removes_next[stream] = not is_removed
                if not is_removed:
                    kept.append(line)
            replace_file(self._path, reversed(kept))
            self._size = sum(map(len, kept))
        self._thinned_size = self._size

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
        self._size = self._path.stat().st_size
        return positions


def _line(stream: Stream, offset: int, wall: float | None, metrics: Metrics) -> str:
    origin = {**stream._asdict(), "offset": offset, "time": wall}
    return json.dumps({"v": VERSION, **origin, **metrics.as_data()}, allow_nan=False) + "\n"


def _blocks(path: Path, position: int, end: float) -> Iterator[bytes]:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(position)
        while position < end and (data := file.read(int(min(BLOCK, end - position)))):
            position += len(data)
            yield data
