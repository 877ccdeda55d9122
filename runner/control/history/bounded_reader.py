"""Bounded readers of files in a record, whatever these have become."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from runner.core.codec import decode, parse_json
from runner.core.errors import reason_of

T = TypeVar("T")

MAX_JSON = 64 << 20  # bytes of one file of JSON or YAML
MAX_LINE = 1 << 20
BLOCK = 1 << 20
MAX_TIME = 1e11  # in seconds


class Problems:
    """What of a record could not be read: a line for each file, bounded."""

    MAX = 100

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, name: object, reason: object) -> None:
        """Note why a file could not be read."""
        text = f"{name}: {reason}"[:300]
        if len(self.lines) < self.MAX and text not in self.lines:
            self.lines.append(text)


def open_file(path: Path) -> BinaryIO:
    """Open a regular file that is no link; raise OSError. Nothing here waits for a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, problems: Problems, *, optional: bool = False) -> bytes | None:
    """Return the content of a file, None if it cannot be read or is too large."""
    try:
        with open_file(path) as file:
            data = file.read(MAX_JSON + 1)
    except OSError as error:
        if not (optional and isinstance(error, FileNotFoundError)):
            problems.add(path.name, reason_of(error))
        return None
    if len(data) > MAX_JSON:
        problems.add(path.name, f"it is larger than {MAX_JSON >> 20} MiB")
        return None
    return data


def read_json(path: Path, problems: Problems, *, optional: bool = False) -> Any:
    """Return the data of a JSON file, None if it cannot be read."""
    data = read_bytes(path, problems, optional=optional)
    try:
        return None if data is None else parse_json(data)
    except ValueError as error:
        problems.add(path.name, error)
        return None


def decoded(cls: type[T], data: Any, name: object, problems: Problems) -> T | None:
    """Return JSON data as a dataclass, None if it is not one."""
    try:
        return decode(cls, data)
    except (ValueError, TypeError, RecursionError) as error:
        problems.add(name, error)
        return None


def blocks_of_lines(path: Path, max_bytes: int, problems: Problems) -> Iterator[bytes]:
    """Yield a file in blocks of whole lines; a torn last line is left out.

    Of a larger file the beginning and the end are read. Lines that are longer than any of ours are
    left out, and named.
    """
    with contextlib.suppress(FileNotFoundError):
        try:
            yield from _blocks(path, max_bytes, problems)
        except FileNotFoundError:
            raise
        except OSError as error:
            problems.add(path.name, reason_of(error))


def _blocks(path: Path, max_bytes: int, problems: Problems) -> Iterator[bytes]:
    with open_file(path) as file:
        rest = b""
        is_skipping = False
        tail_begin = os.fstat(file.fileno()).st_size - max_bytes // 2
        while data := file.read(BLOCK):
            if is_skipping:
                _, line_break, data = data.partition(b"\n")
                is_skipping = not line_break
            lines, line_break, last = data.rpartition(b"\n")
            if line_break:
                yield rest + lines + line_break
                rest = last
            else:
                rest += last
            if len(rest) > MAX_LINE:
                problems.add(path.name, "a line is too long")
                rest = b""
                is_skipping = True
            if max_bytes // 2 <= file.tell() < tail_begin:
                limit = f"{max_bytes >> 20} MiB"
                problems.add(path.name, f"only {limit} of it are read, its beginning and its end")
                file.seek(tail_begin)
                rest = b""
                is_skipping = True
