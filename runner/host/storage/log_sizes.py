"""Log sizes over time, so that `logs --since` finds where to begin."""

from __future__ import annotations

import json
import os
import time
from typing import Dict, Mapping

from runner.core.protocol.paths import RunPaths
from runner.host.storage.run_folder import append


def sample_log_sizes(folder: RunPaths, attempt: int, previous: Mapping[str, int]) -> Dict[str, int]:
    """Record the size of each log that has grown since `previous`; return the sizes of all."""
    sizes: Dict[str, int] = {}
    try:
        for entry in os.scandir(folder.attempt_folder(attempt)):
            if entry.name.endswith((".out", ".err")):
                sizes[entry.name] = entry.stat().st_size
        grown = {name: size for name, size in sizes.items() if size != previous.get(name)}
        if grown:
            line = json.dumps({"wall": round(time.time(), 1), "sizes": grown}) + "\n"
            append(folder.log_sizes(attempt), line.encode())
    except OSError:  # a full disk is reported by the journal
        return dict(previous)
    return sizes
