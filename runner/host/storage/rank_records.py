"""Rank records: the start and exit files that the rank shims write."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Set, Tuple


def read_rank_records(
    attempt_dir: str, read_names: Set[str]
) -> List[Tuple[str, int, Dict[str, Any]]]:
    """Return the records written since the last call, in the order of events.

    Each is "start" or "exit", the rank, and the record, with the number of the start as `start`;
    `read_names` holds the files that were read.
    """
    try:
        names = os.listdir(attempt_dir)
    except OSError:
        return []
    records = []
    for name in names:
        stem, _, kind = name.rpartition(".")
        if name in read_names or kind not in ("start", "exit") or not stem.startswith("rank_"):
            continue
        try:
            with open(os.path.join(attempt_dir, name), encoding="ascii") as file:
                data = json.load(file)
        except (OSError, ValueError):
            continue
        read_names.add(name)
        rank, _, start = stem[len("rank_") :].partition(".")
        records.append((kind, int(rank), {**data, "start": int(start or 1)}))
    return sorted(records, key=lambda record: float(record[2]["mono"]))
