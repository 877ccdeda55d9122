"""Terminated exits: ranks and launchers that a stop or the end of others ended: no failures."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

from runner.core.model.plan import Plan
from runner.core.outcome.first_failure import node_stops, stop_before
from runner.core.protocol.events import Event, ProgramExited, RankExited, Stopping

EventKey = tuple[str, int, int]
"""The node, the attempt and the number of an event."""


def event_key(event: Event) -> EventKey:
    """Return what no other event of a run has."""
    return event.node, event.attempt, event.seq


def terminated_exits(events: Sequence[Event], plans: Iterable[Plan]) -> set[EventKey]:
    """Return the exits that are no failure: they followed a stop, or the end of a rank beside them.

    What exits in any way after a stop that came from elsewhere did not fail; a stop that is itself
    a failure ends by a signal. Torch terminates the ranks beside one that failed, and where it
    restarts them, those of a membership that ended.
    """
    followed, any_stop = node_stops(events), _first_stops(events)
    restarted = {plan.attempt for plan in plans if plan.restarts_ranks}
    failed: set[tuple[str, int]] = set()
    found: set[EventKey] = set()
    for event in events:
        body, place = event.body, (event.node, event.attempt)
        if not isinstance(body, (RankExited, ProgramExited)) or body.code == 0:
            continue
        is_rank = isinstance(body, RankExited)
        is_terminated = is_rank and body.signal == signal.SIGTERM
        is_ours = body.signal in (signal.SIGTERM, signal.SIGKILL)
        was_stopped = stop_before(event, followed) is not None
        was_stopped |= is_ours and event.mono >= any_stop.get(place, float("inf"))
        was_stopped |= is_terminated and (place in failed or event.attempt in restarted)
        if was_stopped and (is_rank or place not in failed):
            found.add(event_key(event))
        elif is_rank:
            failed.add(place)
    return found


def _first_stops(events: Iterable[Event]) -> dict[tuple[str, int], float]:
    """Return when each node began to stop, for any cause, by its own clock."""
    stops: dict[tuple[str, int], float] = {}
    for event in events:
        if isinstance(event.body, Stopping):
            stops.setdefault((event.node, event.attempt), event.mono)
    return stops
