"""Tails of the logs on record, bounded: that of the failed rank first."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from runner.control.history.bounded_reader import Problems, open_file
from runner.core.errors import reason_of
from runner.core.history.run_data import LogTail
from runner.core.outcome.verdict import Verdict
from runner.core.protocol.paths import (
    PROGRAM_LOG,
    STREAMS,
    is_node_name,
    is_rank_source,
    rank_source,
    source_rank,
)

LOG_BYTES = 16 << 10  # of one log
MAX_BYTES = 4 << 20  # of all logs
MAX_LOGS = 1000

_NAME = re.compile(rf"({PROGRAM_LOG}|rank_[0-9]{{1,9}})\.({'|'.join(STREAMS)})")
_ATTEMPT = re.compile(r"attempt_([0-9]{1,6})")


def read_logs(
    folder: Path, verdict: Verdict | None, log_bytes: int, problems: Problems
) -> tuple[LogTail, ...]:
    """Return the ends of the logs: of the last attempt first, of the failed rank before others."""
    failure = verdict.first_failure if verdict else None
    failed = rank_source(failure.rank) if failure and failure.rank is not None else PROGRAM_LOG

    def order(found: tuple[int, str, str, str, Path]) -> tuple[object, ...]:
        attempt, node, source, stream, _ = found
        is_failed = failure is not None and (node, source) == (failure.node, failed)
        rank = source_rank(source) if is_rank_source(source) else -1
        return -attempt, not is_failed, rank < 0, rank, node, stream

    logs = list[LogTail]()
    left = MAX_BYTES
    for attempt, node, source, stream, path in sorted(_found(folder / "logs"), key=order):
        if len(logs) >= MAX_LOGS or left <= 0:
            problems.add("logs", f"only {len(logs):,} of them are read")
            break
        try:
            with open_file(path) as file:
                size = file.seek(0, os.SEEK_END)
                start = max(0, size - min(log_bytes, left))
                file.seek(start)
                data = file.read(size - start)
        except OSError as error:
            problems.add(f"logs/{node}/{path.name}", reason_of(error))
            continue
        if not size:
            continue
        if start and b"\n" in data:
            data = data.partition(b"\n")[2]
        left -= len(data)
        logs.append(LogTail(node, attempt, source, stream, data.decode(errors="replace"), size))
    return tuple(logs)


def _found(logs: Path) -> Iterator[tuple[int, str, str, str, Path]]:
    """Yield attempt, node, source, stream and path of each log."""
    for folder in _folders(logs):
        if not is_node_name(folder.name):
            continue
        places = {0: folder}
        for each in _folders(folder):
            if match := _ATTEMPT.fullmatch(each.name):
                places[int(match[1])] = each
        for attempt, place in places.items():
            for path in _entries(place):
                if match := _NAME.fullmatch(path.name):
                    yield attempt, folder.name, match[1], match[2], path


def _folders(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.is_dir() and not path.is_symlink()]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
