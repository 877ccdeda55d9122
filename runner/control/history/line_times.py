"""Times of metrics lines, estimated: a host looks at its logs at intervals, not at each line.

Lines that one look found carry its time. Here they are spread evenly over the time since the look
before, or since their rank started, and never over more than an interval.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from runner.core.protocol.events import Event, RankStarted

INTERVAL_S = 10.0
"""The time between two looks, `SAMPLE_INTERVAL_S` of the log sampler on a host."""

RankKey = tuple[int, int]
"""An attempt, and a rank in it."""


class LineTimes:
    """The times of lines that come in order, given when each rank of each attempt started."""

    def __init__(self, starts: Mapping[RankKey, float]) -> None:
        self._last_look = dict(starts)

    def spread(
        self, attempts: Sequence[int], ranks: Sequence[int], looks: Sequence[float]
    ) -> list[float]:
        """Return a time for each line; NaN where there was no look."""
        times: list[float] = []
        lines = zip(attempts, ranks, looks, strict=True)
        for (attempt, rank, look), group in itertools.groupby(lines):
            count = sum(1 for _ in group)
            if count == 1 or math.isnan(look):
                times += [look] * count
            else:
                begin = max(self._last_look.get((attempt, rank), -math.inf), look - INTERVAL_S)
                step = max(0.0, look - begin) / count
                times += [look - step * (count - number) for number in range(1, count + 1)]
            if not math.isnan(look):
                self._last_look[attempt, rank] = look
        return times


def starts_of_ranks(events: Iterable[Event]) -> dict[RankKey, float]:
    """Return when each rank first started in each attempt, by the clock of its host."""
    starts: dict[RankKey, float] = {}
    for event in events:
        if isinstance(event.body, RankStarted):
            starts.setdefault((event.attempt, event.body.rank), event.wall)
    return starts
