"""Attempt folder: what the rank shims record in it, and the sizes of its logs over time."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, List, Set, Tuple

from runner.core.protocol.paths import RunPaths
from runner.host.storage.run_folder import append

SAMPLE_INTERVAL_S = 10.0


def read_rank_records(folder: str, read_names: Set[str]) -> List[Tuple[str, int, Dict[str, Any]]]:
    """Return the records that shims wrote since the last call, in the order of events.

    Each is "start" or "exit", the rank, and the record, with the number of the start as `start`;
    `read_names` holds the files that were read.
    """
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    records = []
    for name in names:
        stem, _, kind = name.rpartition(".")
        if name in read_names or kind not in ("start", "exit") or not stem.startswith("rank_"):
            continue
        try:
            with open(os.path.join(folder, name), encoding="ascii") as file:
                data = json.load(file)
        except (OSError, ValueError):
            continue
        read_names.add(name)
        rank, _, start = stem[len("rank_") :].partition(".")
        records.append((kind, int(rank), {**data, "start": int(start or 1)}))
    return sorted(records, key=lambda record: float(record[2]["mono"]))


class LogSampler:
    """Records how long the logs are, so that `logs --since` finds where to begin."""

    def __init__(
        self, folder: RunPaths, attempt: int, max_interval_s: float = SAMPLE_INTERVAL_S
    ) -> None:
        self.sizes: Dict[str, int] = {}  # at the last sample, by file name
        self._folder, self._attempt = folder, attempt
        self._interval_s = min(SAMPLE_INTERVAL_S, max_interval_s)
        self._next_at = time.monotonic()

    def is_due(self) -> bool:
        """Return whether the interval is over; another one begins then."""
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + self._interval_s
        return True

    def sample(self) -> None:
        """Record the size of each log that has grown since the last sample."""
        sizes: Dict[str, int] = {}
        try:
            for entry in os.scandir(self._folder.attempt_folder(self._attempt)):
                if entry.name.endswith((".out", ".err")):
                    sizes[entry.name] = entry.stat().st_size
            grown = {name: size for name, size in sizes.items() if size != self.sizes.get(name)}
            if grown:
                line = json.dumps({"wall": round(time.time(), 1), "sizes": grown}) + "\n"
                append(self._folder.log_sizes(self._attempt), line.encode())
        except OSError:  # a full disk is reported by the journal
            return
        self.sizes = sizes
