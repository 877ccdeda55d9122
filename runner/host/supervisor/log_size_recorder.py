"""Log size recorder: how long the logs of an attempt are, over time."""

from __future__ import annotations

import json
import os
import time
from typing import Dict

from runner.core.protocol.paths import RunPaths
from runner.host.storage.run_folder import append

RECORD_INTERVAL_S = 10.0


class LogSizeRecorder:
    """Records how long the logs are, so that `logs --since` finds where to begin."""

    def __init__(
        self, folder: RunPaths, attempt: int, max_interval_s: float = RECORD_INTERVAL_S
    ) -> None:
        self.sizes: Dict[str, int] = {}  # at the last record, by file name
        self._folder, self._attempt = folder, attempt
        self._interval_s = min(RECORD_INTERVAL_S, max_interval_s)
        self._next_at = time.monotonic()

    def is_due(self) -> bool:
        """Return whether the interval is over; another one begins then."""
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + self._interval_s
        return True

    def record(self) -> None:
        """Record the size of each log that has grown since the last record."""
        sizes: Dict[str, int] = {}
        try:
            for entry in os.scandir(self._folder.attempt_folder(self._attempt)):
                if entry.name.endswith((".out", ".err", ".metrics")):
                    sizes[entry.name] = entry.stat().st_size
            grown = {name: size for name, size in sizes.items() if size != self.sizes.get(name)}
            if grown:
                line = json.dumps({"wall": round(time.time(), 1), "sizes": grown}) + "\n"
                append(self._folder.log_sizes(self._attempt), line.encode())
        except OSError:  # a full disk is reported by the journal
            return
        self.sizes = sizes
