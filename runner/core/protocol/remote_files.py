"""Remote files: records, logs and outputs of a run that are downloaded from a host."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

RECORD, LOG, OUTPUT = "record", "log", "output"
FILE_KINDS = (RECORD, LOG, OUTPUT)

RECORD_FILES = (
    *("format", "run.json", "plan.json", "config.yaml", "order.json"),
    *("state.json", "events.jsonl", "supervisor.log"),
)
"""Files of the run folder on a host that are downloaded."""

APPEND_ONLY = ("events.jsonl", "supervisor.log")
"""Those that are only appended to, like the logs; the others are replaced."""

CHUNK = 256 << 10
"""Bytes of a log or a file that the controller asks for at a time."""

MAX_CHUNK = 1 << 20
"""Bytes of one reply, at most."""

MAX_INT = 1 << 62
"""Larger than any size in bytes and any time in nanoseconds."""

LOG_PATH = re.compile(
    r"attempt_([0-9]{1,6})/((?:rank_[0-9]{1,9}|program|stacks)\.(?:out|err)|flight_[0-9]{1,9})"
)


@dataclass(frozen=True)
class RemoteFile:
    """A file or a symbolic link on a host."""

    kind: str  # "record", "log" or "output"
    path: str  # below the run folder; of an output, below the working folder of the ranks
    size: int  # in bytes
    mtime_ns: int
    mode: int  # its permissions
    link_target: Optional[str] = None  # None for a file

    def to_row(self) -> List[Any]:
        """Return the file as a row of JSON."""
        return [self.kind, self.path, self.size, self.mtime_ns, self.mode, self.link_target]

    @staticmethod
    def from_row(row: Any) -> RemoteFile:
        """Return the file of a row.

        Raises:
            ValueError: It is no such row, or leads out of its folder.
        """
        try:
            kind, path, size, mtime_ns, mode, link_target = row
            file = RemoteFile(kind, path, int(size), int(mtime_ns), int(mode) & 0o777, link_target)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"no file in an inventory: {error}") from error
        validate(kind, path)
        if link_target is not None and (kind != OUTPUT or not isinstance(link_target, str)):
            raise ValueError(f"{path!r} is no link")
        if not 0 <= file.size < MAX_INT or not -MAX_INT < file.mtime_ns < MAX_INT:
            raise ValueError(f"{path!r} has no such size or time")
        for text in (path, link_target or ""):
            text.encode("utf-8", "surrogateescape")
        return file


def validate(kind: Any, path: Any) -> None:
    """Refuse paths that must not be downloaded.

    Raises:
        ValueError: There is no such kind, or the path is not legal for it.
    """
    legal = isinstance(path, str) and is_below(path)
    if kind == RECORD:
        legal = path in RECORD_FILES
    elif kind == LOG:
        legal = legal and LOG_PATH.fullmatch(path) is not None
    elif kind != OUTPUT:
        legal = False
    if not legal:
        raise ValueError(f"{path!r} is no {kind} of a run")


def is_below(path: str) -> bool:
    """Return whether a path stays below its folder."""
    return "\0" not in path and not any(part in ("", ".", "..") for part in path.split("/"))


def parse_log_path(path: str) -> Tuple[int, str]:
    """Return the attempt and the file name of a log's path.

    Raises:
        ValueError: It is none.
    """
    match = LOG_PATH.fullmatch(path)
    if match is None:
        raise ValueError(f"{path!r} is no log of a run")
    return int(match[1]), match[2]
