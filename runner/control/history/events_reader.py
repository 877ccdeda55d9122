"""Reader of `events.jsonl`: all events of a run, or of very many those that tell the most."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from runner.control.history.bounded_reader import Problems, blocks_of_lines
from runner.core.protocol.events import Event, parse
from runner.core.protocol.paths import EVENTS_FILE

MAX_EVENTS = 20_000
MAX_SIZE = 256 << 20  # bytes of the file that are read

_USUAL = re.compile(
    rb'"kind":\s?"(?:program_started|rank_started|hub_joined|program_exited|detached)"'
    rb'|"kind":\s?"rank_exited".*?"code":\s?0\b'
)
"""What nobody would miss where there are too many."""


def read_events(
    folder: Path, problems: Problems, limit: int = MAX_EVENTS
) -> tuple[tuple[Event, ...], int]:
    """Return the events by time, the first and last of too many, and how many there are."""
    important: list[bytes] = []
    usual: list[bytes] = []
    count = 0
    for block in blocks_of_lines(folder / EVENTS_FILE, MAX_SIZE, problems):
        for line in filter(None, block.splitlines()):
            kind = usual if _USUAL.search(line, 0, 1000) else important
            count += bool(line.strip())
            kind.append(line)
            if len(kind) > 2 * limit:
                _keep_ends(kind, limit)
    _keep_ends(important, limit)
    _keep_ends(usual, limit - len(important))
    kept = important + usual
    events = []
    bad = 0
    for line in kept:
        with contextlib.suppress(ValueError, RecursionError):
            events.append(parse(line.decode(errors="replace")))
            continue
        bad += 1
    if bad:
        problems.add(EVENTS_FILE, f"{bad:,} lines are no events")
    if count > len(kept):
        problems.add(EVENTS_FILE, f"{len(kept):,} of {count:,} events are read")
    return tuple(sorted(events, key=lambda event: event.wall)), count - bad


def _keep_ends(lines: list[bytes], limit: int) -> None:
    """Remove lines from the middle, if there are too many."""
    excess = len(lines) - limit
    if excess > 0:
        first = limit // 2
        del lines[first : first + excess]
