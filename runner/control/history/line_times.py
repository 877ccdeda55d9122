"""Times of metrics lines that nobody read while they were written: an estimate.

They are spread evenly between the known times around them, the start of their rank and its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from runner.core.history.run_data import Metric, Series
from runner.core.protocol.events import Event, RankExited, RankStarted

RankKey = tuple[int, int]
"""An attempt, and a rank in it."""


def with_times(metrics: Sequence[Metric], events: Sequence[Event]) -> tuple[Metric, ...]:
    """Return metrics whose unknown times are estimated, as far as the events allow."""
    starts = _first_times(events, RankStarted)
    ends = _first_times(reversed(events), RankExited)
    found = []
    for metric in metrics:
        by_attempt = _filled(metric.by_attempt, metric.rank, starts, ends)
        spread = _filled(metric.spread, metric.rank, starts, ends)
        found.append(replace(metric, by_attempt=by_attempt, spread=spread))
    return tuple(found)


def _filled(
    by_attempt: Mapping[int, Series],
    rank: int,
    starts: Mapping[RankKey, float],
    ends: Mapping[RankKey, float],
) -> dict[int, Series]:
    filled = {}
    for attempt, series in by_attempt.items():
        key = (attempt, rank)
        times = fill_times(series.times, starts.get(key), ends.get(key))
        filled[attempt] = replace(series, times=times)
    return filled


def fill_times(
    times: Sequence[float | None], start: float | None, end: float | None
) -> tuple[float | None, ...]:
    """Return times in which unknown ones are spread evenly between those before and after."""
    filled = list(times)
    begin = 0
    while begin < len(filled):
        stop = begin
        while stop < len(filled) and filled[stop] is None:
            stop += 1
        before = filled[begin - 1] if begin else start
        after = filled[stop] if stop < len(filled) else end
        if before is not None and after is not None:
            pause = max(0.0, after - before) / (stop - begin + 1)
            for index in range(begin, stop):
                filled[index] = before + pause * (index - begin + 1)
        begin = stop + 1
    return tuple(filled)


def _first_times(
    events: Iterable[Event], kind: type[RankStarted | RankExited]
) -> dict[RankKey, float]:
    """Return when the first event of a kind was, for each rank of each attempt."""
    times: dict[RankKey, float] = {}
    for event in events:
        if isinstance(event.body, kind):
            times.setdefault((event.attempt, event.body.rank), event.wall)
    return times
