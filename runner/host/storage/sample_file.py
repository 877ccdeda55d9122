"""Sample file of an attempt and host, of 1 MiB at most (`remote_files.MAX_SAMPLE_FILE`).

Before it grows past that it is thinned: the newest samples stay; older ones that stand too close in
time are left out, so that what is kept covers the attempt from its start, evenly.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from typing import List

from runner.core.protocol.paths import RunPaths
from runner.core.protocol.remote_files import MAX_SAMPLE_FILE
from runner.host.process import procfs
from runner.host.storage.run_folder import append, write_atomic

THINNED_SHARE, NEWEST_SHARE = 0.75, 0.4
"""What is kept when the bound is reached, in all and of the newest, in parts of the bound."""

FIRST_TAIL = 64 << 10  # bytes that are read at first

_WALL = re.compile(rb'"wall":([0-9.e+]+)')
_JITTER = 0.9


class SampleFile:
    """The file; for the thread that has the file access."""

    def __init__(self, folder: RunPaths, attempt: int, max_size: int = MAX_SAMPLE_FILE) -> None:
        self._path, self._max_size = folder.samples(attempt), max_size
        self._is_checked = False

    def append(self, line: bytes) -> str:
        """Append a line; return why that was not possible.

        After that nothing more may be appended: room that is made on a full disk is for the end of
        the run.
        """
        try:
            size = self._end_torn_line()
            append(self._path, line)
            if size + len(line) > self._max_size:
                self._thin()
        except OSError as error:
            return os.strerror(error.errno or 0)
        return ""

    def _end_torn_line(self) -> int:
        """Return the size; what a power cut left unfinished is ended."""
        with contextlib.suppress(FileNotFoundError):
            size = os.stat(self._path).st_size
            if not self._is_checked and size:
                with open(self._path, "rb") as file:
                    if os.pread(file.fileno(), 1, size - 1) != b"\n":
                        append(self._path, b"\n")
            self._is_checked = True
            return size
        return 0

    def _thin(self) -> None:
        with open(self._path, "rb") as file:
            lines = file.read().splitlines(keepends=True)
        write_atomic(self._path, b"".join(thin(lines, self._max_size)))


def newest_attempt(folder: RunPaths) -> int:
    """Return the newest attempt with samples, 0 if there is none."""
    names = [name.partition("_") for name in procfs.list_names(folder.root)]
    numbers = [int(each[2]) for each in names if each[0] == "attempt" and each[2].isdigit()]
    with_samples = [each for each in numbers if os.path.exists(folder.samples(each))]
    return max(with_samples, default=0)


def read_since(folder: RunPaths, attempt: int, since: float) -> List[bytes]:
    """Return the whole lines of the samples after a time; read from the end of the file."""
    try:
        descriptor = os.open(folder.samples(attempt), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    with open(descriptor, "rb") as file:
        size, tail = os.fstat(descriptor).st_size, FIRST_TAIL
        while True:
            start = max(0, size - min(tail, 2 * MAX_SAMPLE_FILE))
            file.seek(start)
            lines = file.read(size - start).splitlines(keepends=True)
            lines = lines[1 if start else 0 :]  # the first one may be cut
            if not start or tail >= 2 * MAX_SAMPLE_FILE or (lines and _wall(lines[0]) <= since):
                return [line for line in lines if line.endswith(b"\n") and _wall(line) > since]
            tail *= 4


def thin(lines: List[bytes], max_size: int) -> List[bytes]:
    """Return the lines to keep of a file of that bound."""
    room, count = NEWEST_SHARE * max_size, len(lines)
    while count and room >= len(lines[count - 1]):
        count -= 1
        room -= len(lines[count])
    older, newest = lines[:count], lines[count:]
    walls = [_wall(line) for line in older]
    room, gap = THINNED_SHARE * max_size - sum(map(len, newest)), _least_gap(walls)
    while older and sum(map(len, older)) > room:
        gap *= 2
        kept = _spaced(walls, _JITTER * gap)
        if kept == [0] or gap == math.inf:  # at times that do not grow
            return newest
        older, walls = [older[i] for i in kept], [walls[i] for i in kept]
    return [*older, *newest]


def _spaced(walls: List[float], gap: float) -> List[int]:
    """Return the places of the samples that are so far apart; a clock may have been set back."""
    kept = [0]
    for place in range(1, len(walls)):
        if not 0 <= walls[place] - walls[kept[-1]] < gap:
            kept.append(place)
    return kept


def _least_gap(walls: List[float]) -> float:
    gaps = [walls[n] - walls[n - 1] for n in range(1, len(walls)) if walls[n] > walls[n - 1]]
    return min(gaps, default=1.0)


def _wall(line: bytes) -> float:
    match = _WALL.search(line)
    with contextlib.suppress(ValueError):
        return float(match[1]) if match else 0.0
    return 0.0
