"""Sample file of an attempt and host, of 1 MiB at most (`remote_files.MAX_SAMPLE_FILE`).

When it is full, every second sample is dropped, and from then on twice the time lies between those
that stay. The newest one is always there: the next one replaces it, unless it is to stay.
"""

from __future__ import annotations

import os
from dataclasses import replace

from runner.core.model.samples import parse_sample
from runner.core.protocol.paths import RunPaths
from runner.core.protocol.remote_files import MAX_SAMPLE_FILE
from runner.host.storage.run_folder import write_atomic


class SampleFile:
    """The file; for the thread that has the file access."""

    def __init__(self, folder: RunPaths, attempt: int, max_size: int = MAX_SAMPLE_FILE) -> None:
        self._path = folder.samples(attempt)
        self._max_size = max_size
        self._end = -1  # of what stays; not known yet
        self._every = 1  # of so many samples, one stays
        self._count = 0  # since the last one that stays

    def append(self, line: bytes) -> str:
        """Write a sample; return why that was not possible.

        After that nothing more may be appended: room that is made on a full disk is for the end of
        the run.
        """
        try:
            self._write(line)
            self._count += 1
            if self._count == self._every:
                self._count = 0
                self._end += len(line)
            if self._end > self._max_size:
                self._halve()
        except OSError as error:
            return os.strerror(error.errno or 0)
        return ""

    def _write(self, line: bytes) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self._path, flags, 0o600), "r+b") as file:
            if self._end < 0:
                self._end = file.seek(0, os.SEEK_END)
                file.seek(max(0, self._end - 1))
                if file.read(1) not in (b"", b"\n"):  # torn by a power cut
                    self._end += file.write(b"\n")
            file.seek(self._end)
            file.write(line)
            file.truncate()

    def _halve(self) -> None:
        with open(self._path, "rb") as file:
            lines = file.read().splitlines(keepends=True)
        *older, newest = lines[(len(lines) - 1) % 2 :: 2]
        content = b"".join([*map(_without_ranks, older), newest])
        write_atomic(self._path, content)
        self._end = len(content)
        self._every *= 2


def _without_ranks(line: bytes) -> bytes:
    """Return a sample without its processes of runs, which make half of a line; "" if torn."""
    try:
        sample = parse_sample(line)
    except ValueError:
        return b""
    gpus = []
    for gpu in sample.gpus:
        others = tuple(user for user in gpu.users if not user.run_id)
        gpus.append(replace(gpu, users=others))
    return replace(sample, gpus=tuple(gpus)).to_line().encode()
