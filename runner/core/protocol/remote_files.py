"""What is brought home from a host: its records of a run, the logs, what the task left."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

RECORD, LOG, OUTPUT = "record", "log", "output"
KINDS = (RECORD, LOG, OUTPUT)

RECORDS = (
    *("format", "run.json", "plan.json", "config.yaml", "order.json"),
    *("state.json", "events.jsonl", "supervisor.log"),
)
"""Files of the run folder on a host that are worth keeping."""

GROWING = ("events.jsonl", "supervisor.log")
"""Those of them that are only ever appended to, as the logs are; others are replaced."""

MAX_PIECE = 1 << 20
"""Bytes of one answer, at most."""

FAR = 1 << 62
"""No size in bytes and no time in nanoseconds is as large."""

LOG_PATH = re.compile(
    r"attempt_([0-9]{1,6})/((?:rank_[0-9]{1,9}|program|stacks)\.(?:out|err)|flight_[0-9]{1,9})"
)


@dataclass(frozen=True)
class Found:
    """A file or a symbolic link on a host.

    Attributes:
        kind: "record", "log" or "output".
        path: Below the run's folder there; of an output, below the working folder of the ranks.
        size: In bytes.
        mtime_ns: When it was changed last.
        mode: Its permissions.
        target: What a symbolic link says, None for a file.
    """

    kind: str
    path: str
    size: int
    mtime_ns: int
    mode: int
    target: Optional[str] = None

    def row(self) -> List[Any]:
        """Return it as it crosses the wire."""
        return [self.kind, self.path, self.size, self.mtime_ns, self.mode, self.target]

    @staticmethod
    def of(row: Any) -> Found:
        """Return what `row` made.

        Raises:
            ValueError: It is no such thing, or would lead out of its folder.
        """
        try:
            kind, path, size, mtime_ns, mode, target = row
            found = Found(kind, path, int(size), int(mtime_ns), int(mode) & 0o777, target)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"no file in an inventory: {error}") from error
        check(kind, path)
        if target is not None and (kind != OUTPUT or not isinstance(target, str)):
            raise ValueError(f"{path!r} is no link")
        if not 0 <= found.size < FAR or not -FAR < found.mtime_ns < FAR:
            raise ValueError(f"{path!r} has no such size or time")
        for text in (path, target or ""):
            text.encode("utf-8", "surrogateescape")
        return found


def check(kind: Any, path: Any) -> None:
    """Refuse what is not to be fetched.

    Raises:
        ValueError: There is no such kind, or the path has no place in it.
    """
    legal = isinstance(path, str) and inside(path)
    if kind == RECORD:
        legal = path in RECORDS
    elif kind == LOG:
        legal = legal and LOG_PATH.fullmatch(path) is not None
    elif kind != OUTPUT:
        legal = False
    if not legal:
        raise ValueError(f"{path!r} is no {kind} of a run")


def inside(path: str) -> bool:
    """Whether a path stays below the folder it is meant in."""
    return "\0" not in path and not any(part in ("", ".", "..") for part in path.split("/"))


def log_place(path: str) -> Tuple[int, str]:
    """Return the attempt and the file name of a log's path.

    Raises:
        ValueError: It is none.
    """
    found = LOG_PATH.fullmatch(path)
    if found is None:
        raise ValueError(f"{path!r} is no log of a run")
    return int(found[1]), found[2]
