"""Log sampler: the length of every log on record, so that the last minutes can be read later."""

from __future__ import annotations

import time
from typing import Dict

from runner.core.model.order import Order
from runner.core.protocol.paths import RunPaths
from runner.host.storage.log_sizes import sample_log_sizes

INTERVAL_S = 10.0


class LogSampler:
    """The samples of one attempt.

    Attributes:
        sizes: The length of each log at the last sample.
    """

    def __init__(self, folder: RunPaths, order: Order, max_interval_s: float) -> None:
        self.sizes: Dict[str, int] = {}
        self._folder, self._attempt = folder, order.attempt
        self._interval_s = min(INTERVAL_S, max_interval_s)
        self._next_at = time.monotonic()

    def is_due(self) -> bool:
        """Return whether the interval is over; another one begins then."""
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + self._interval_s
        return True

    def sample(self) -> None:
        """Record how long the logs are."""
        self.sizes = sample_log_sizes(self._folder, self._attempt, self.sizes)
