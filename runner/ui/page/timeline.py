"""Timeline of a run: its attempts, and when each node and rank was at work, with every event."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.core.history.run_data import RunData
from runner.core.model.plan import Plan
from runner.core.outcome.first_failure import node_stops, stop_before
from runner.core.protocol.events import (
    Ended,
    Event,
    HostLost,
    ProgramExited,
    ProgramStarted,
    RankExited,
    RankStarted,
    Stopping,
)
from runner.core.protocol.states import State
from runner.core.text import counted, printable
from runner.ui.page.columns import Number, relative
from runner.ui.page.event_texts import KIND_NAMES, event_level, event_rank, event_text

MAX_TEXT = 400  # characters of an event

ON, SUCCEEDED, FAILED, STOPPED, UNSEEN = range(5)
"""How a bar of the timeline ends."""

CONTROLLER = "controller"
_STATES = {State.SUCCEEDED: SUCCEEDED, State.FAILED: FAILED, State.STUCK: FAILED}
NODE_BAR = -1  # in place of a rank

EventKey = tuple[str, int, int]
"""The node, the attempt and the number of an event."""


@dataclass(frozen=True)
class _Bar:
    """A span in which a node or a rank was at work; `end` is None if that was not seen."""

    node: str
    rank: int
    attempt: int
    start: float
    end: float | None
    state: int


def timeline(run: RunData, origin: float, end: float, *, is_on: bool) -> dict[str, Any]:
    """Return nodes with their ranks, attempts, bars and events, as the page draws them."""
    stopped = terminated_exits(run.events, run.plans)
    bars = _bars(run.events, stopped, end, is_on=is_on)
    ranks = _ranks_by_node(run, bars)
    index = {name: number for number, name in enumerate(ranks)}
    hosts = {node.node: node.host for plan in run.plans for node in plan.nodes}
    return {
        "nodes": [
            {
                "name": printable(name) or CONTROLLER,
                "host": printable(hosts.get(name, "")),
                "ranks": sorted(own),
            }
            for name, own in ranks.items()
        ],
        "attempts": _attempts(run, origin, end),
        "bars": _bar_columns(bars, index, origin),
        "events": _event_columns(run.events, stopped, index, origin),
        "kinds": list(KIND_NAMES.values()),
        "left_out": max(0, run.event_count - len(run.events)),
        "end": relative(end, origin),
    }


def _ranks_by_node(run: RunData, bars: Iterable[_Bar]) -> dict[str, set[int]]:
    """Return the ranks that each node ever had, in the order of the last plan."""
    ranks: dict[str, set[int]] = {}
    if any(event.node == "" for event in run.events):
        ranks[""] = set()
    for plan in reversed(run.plans):
        for node in plan.nodes:
            ranks.setdefault(node.node, set()).update(node.ranks)
    for event in run.events:
        ranks.setdefault(event.node, set())
    for bar in bars:
        if bar.rank != NODE_BAR:
            ranks[bar.node].add(bar.rank)
    return ranks


class _Bars:
    """The bars of nodes and ranks, as their events close them."""

    def __init__(self, stopped: set[EventKey]) -> None:
        self._stopped = stopped
        self.closed: list[_Bar] = []
        self._open: dict[tuple[str, int, int], tuple[float, int]] = {}  # by attempt and rank

    def see(self, event: Event) -> None:
        """Take account of an event; they come by time."""
        body, key = event.body, (event.node, event.attempt, NODE_BAR)
        bad_end = STOPPED if event_key(event) in self._stopped else FAILED
        if isinstance(body, ProgramStarted):
            self._open[key] = (event.wall, 0)
        elif isinstance(body, RankStarted):
            rank_key = (event.node, event.attempt, body.rank)
            self._close(rank_key, event.wall, UNSEEN)
            self._open[rank_key] = (event.wall, body.start)
        elif isinstance(body, RankExited):
            was_unseen = body.code is None and body.signal is None and bad_end == FAILED
            state = SUCCEEDED if body.succeeded else UNSEEN if was_unseen else bad_end
            self._close((event.node, event.attempt, body.rank), event.wall, state)
        elif isinstance(body, ProgramExited):
            self._close(key, event.wall, SUCCEEDED if body.code == 0 else bad_end)
        elif isinstance(body, (Ended, HostLost)):
            state = _STATES.get(body.state, STOPPED) if isinstance(body, Ended) else FAILED
            self._close(key, event.wall, state)
            for other in [each for each in self._open if each[:2] == key[:2]]:
                self._close(other, event.wall, UNSEEN)

    def finish(self, end: float, state: int) -> list[_Bar]:
        """Close what is open, and return all bars."""
        for key in list(self._open):
            self._close(key, end, state)
        return self.closed

    def _close(self, key: tuple[str, int, int], wall: float, state: int) -> None:
        if key in self._open:
            start, _ = self._open.pop(key)
            node, attempt, rank = key
            self.closed.append(_Bar(node, rank, attempt, start, max(start, wall), state))


def _bars(
    events: Sequence[Event], stopped: set[EventKey], end: float, *, is_on: bool
) -> list[_Bar]:
    bars = _Bars(stopped)
    for event in events:
        bars.see(event)
    return bars.finish(end, ON if is_on else UNSEEN)


def _bar_columns(
    bars: Iterable[_Bar], index: Mapping[str, int], origin: float
) -> dict[str, list[Number]]:
    columns: dict[str, list[Number]] = {
        name: [] for name in ("node", "rank", "attempt", "from", "to", "state")
    }
    for bar in bars:
        columns["node"].append(index[bar.node])
        columns["rank"].append(bar.rank)
        columns["attempt"].append(bar.attempt)
        columns["from"].append(relative(bar.start, origin))
        columns["to"].append(relative(bar.end, origin))
        columns["state"].append(bar.state)
    return columns


def _event_columns(
    shown: Iterable[Event], stopped: set[EventKey], index: Mapping[str, int], origin: float
) -> dict[str, list[Any]]:
    kinds = {cls: number for number, cls in enumerate(KIND_NAMES)}
    names = ("t", "node", "attempt", "rank", "kind", "level", "text")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for event in shown:
        columns["t"].append(relative(event.wall, origin))
        columns["node"].append(index[event.node])
        columns["attempt"].append(event.attempt)
        columns["rank"].append(event_rank(event))
        columns["kind"].append(kinds[type(event.body)])
        was_stopped = event_key(event) in stopped
        columns["level"].append(event_level(event.body, was_stopped=was_stopped))
        columns["text"].append(printable(event_text(event.body))[:MAX_TEXT])
    return columns


def _attempts(run: RunData, origin: float, end: float) -> list[dict[str, Any]]:
    spans: dict[int, tuple[float, float]] = {}
    for event in run.events:
        first, last = spans.get(event.attempt, (event.wall, event.wall))
        spans[event.attempt] = min(first, event.wall), max(last, event.wall)
    numbers = sorted({*spans, *(plan.attempt for plan in run.plans)})
    past = {each.attempt: each.reason for each in run.verdict.past_attempts} if run.verdict else {}
    sizes = {plan.attempt: counted(len(plan.nodes), "node") for plan in run.plans}
    attempts = []
    for number in numbers:
        start, last = spans.get(number, (origin, end))
        to = end if number == numbers[-1] else last
        texts = (sizes.get(number, ""), past.get(number, ""))
        text = printable(", ".join(filter(None, texts)))
        times = {"from": relative(start, origin), "to": relative(max(start, to), origin)}
        attempts.append({"number": number, "text": text, **times})
    return attempts


def event_key(event: Event) -> EventKey:
    """Return what no other event of a run has."""
    return event.node, event.attempt, event.seq


def terminated_exits(events: Sequence[Event], plans: Iterable[Plan]) -> set[EventKey]:
    """Return the exits that are no failure: they followed a stop, or the end of a rank beside them.

    What exits in any way after a stop that came from elsewhere did not fail; a stop that is itself
    a failure ends by a signal. Torch terminates the ranks beside one that failed, and where it
    restarts them, those of a membership that ended.
    """
    followed = node_stops(events)
    any_stop = _first_stops(events)
    restarted = {plan.attempt for plan in plans if plan.restarts_ranks}
    failed: set[tuple[str, int]] = set()
    found: set[EventKey] = set()
    for event in events:
        body = event.body
        place = (event.node, event.attempt)
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
