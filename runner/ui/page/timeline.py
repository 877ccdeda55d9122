"""Timeline of a run: when each node and rank was at work in each attempt, as shapes of an SVG.

Horizontal places are percentages of the width, so that the browser stretches them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from runner.core.history.run_data import RunData
from runner.core.outcome.first_failure import node_stops, stop_before
from runner.core.protocol import events
from runner.core.protocol.events import EVENT_TYPES, Event, EventBody
from runner.core.protocol.states import State
from runner.core.text import describe_exit, format_age, printable

RUNNING = "running"
SUCCEEDED = "good"
FAILED = "bad"
STOPPED = "stopped"
UNSEEN = "unseen"

NODE_HEIGHT = 8
RANK_HEIGHT = 4
GAP = 2

MARKS = 5
"""Times on the axis."""

MAX_EVENT_TEXT = 400

KINDS = {body: name.replace("_", " ") for name, body in EVENT_TYPES.items()}

FAULTS = (
    events.PeerLost,
    events.HostLost,
    events.EndUnverified,
    events.PortTaken,
    events.Stalled,
)
"""Events that are drawn as ticks."""

STARTS = (events.ProgramStarted, events.RankStarted, events.HubJoined)
"""Events that the table leaves out: the bars show them."""

_STATES = {State.SUCCEEDED: SUCCEEDED, State.FAILED: FAILED, State.STUCK: FAILED}


@dataclass
class Bar:
    """A time span of a node or a rank."""

    start: float
    end: float
    state: str
    title: str
    x: str = ""
    width: str = ""
    y: int = 0
    height: int = NODE_HEIGHT


@dataclass
class Row:
    """A node with its bars."""

    name: str
    bars: list[Bar] = field(default_factory=list)
    ticks: list[tuple[str, str]] = field(default_factory=list)  # place and title
    height: int = NODE_HEIGHT + GAP


@dataclass(frozen=True)
class EventRow:
    """An event in the table of them."""

    time: str
    node: str
    kind: str
    text: str
    is_fault: bool


@dataclass(frozen=True)
class Timeline:
    """Everything that the template draws."""

    rows: list[Row]
    attempts: list[tuple[str, str]]  # place and title of each start but the first
    marks: list[tuple[str, str]]  # place and time


class _Scale:
    """Times as places."""

    def __init__(self, start: float, end: float) -> None:
        self.start = start
        self.length = max(end - start, 1e-3)

    def percent(self, seconds: float) -> str:
        return f"{100 * min(1.0, max(0.0, seconds / self.length)):.3f}%"

    def place(self, wall: float) -> str:
        return self.percent(wall - self.start)


def timeline(run: RunData, start: float, end: float) -> Timeline:
    """Return the timeline of a run between two times."""
    scale = _Scale(start, end)
    rows: dict[str, Row] = {}
    ranks: dict[str, dict[int, int]] = {}
    for plan in reversed(run.plans):
        for share in plan.nodes:
            rows.setdefault(share.node, Row(printable(share.node)))
            ranks.setdefault(share.node, {})
    for node, rank, bar in _bars(run, end):
        row = rows.setdefault(node, Row(printable(node)))
        bar.x = scale.place(bar.start)
        bar.width = scale.percent(bar.end - bar.start)
        if rank is not None:
            places = ranks.setdefault(node, {})
            line = places.setdefault(rank, len(places))
            bar.y = NODE_HEIGHT + GAP + line * RANK_HEIGHT
            bar.height = RANK_HEIGHT - 1
            row.height = max(row.height, bar.y + RANK_HEIGHT)
        row.bars.append(bar)
    for event in run.events:
        if isinstance(event.body, FAULTS) and event.node in rows:
            title = f"{event_time(event, start)}  {event_kind(event)}: {event_text(event.body)}"
            rows[event.node].ticks.append((scale.place(event.wall), title))
    marks = [start + (end - start) * number / MARKS for number in range(MARKS)]
    return Timeline(
        rows=list(rows.values()),
        attempts=[
            (scale.place(began), f"attempt {number + 1}")
            for number, began in sorted(_attempt_starts(run).items())
            if number > 0
        ],
        marks=[(scale.place(mark), format_age(mark - start)) for mark in marks],
    )


def event_rows(run: RunData, start: float) -> list[EventRow]:
    """Return the events for a table, without the usual starts."""
    return [
        EventRow(
            time=event_time(event, start),
            node=printable(event.node) or "this machine",
            kind=event_kind(event),
            text=event_text(event.body),
            is_fault=isinstance(event.body, FAULTS),
        )
        for event in run.events
        if not isinstance(event.body, STARTS)
    ]


def event_time(event: Event, start: float) -> str:
    """Return when an event was, after the launch."""
    return f"{event.wall - start:,.1f} s"


def event_kind(event: Event) -> str:
    """Return the name of an event, with its rank."""
    rank = getattr(event.body, "rank", None)
    name = KINDS[type(event.body)]
    return name if rank is None else name.replace("rank", f"rank {rank}", 1)


def event_text(body: EventBody) -> str:
    """Return what an event says besides its kind."""
    if isinstance(body, (events.RankExited, events.ProgramExited)):
        texts = [describe_exit(body.code, body.signal)]
        texts += [body.error, getattr(body, "exception", "")]
    elif isinstance(body, events.Stalled):
        texts = [f"no progress for {format_age(body.seconds)}", body.problem]
    elif isinstance(body, events.Ended):
        texts = [body.state.value, body.reason]
    else:
        texts = [str(getattr(body, name, "")) for name in ("peer", "reason", "error")]
    return printable(", ".join(filter(None, texts)))[:MAX_EVENT_TEXT]


def _attempt_starts(run: RunData) -> Mapping[int, float]:
    starts: dict[int, float] = {}
    for event in run.events:
        if isinstance(event.body, events.ProgramStarted):
            starts.setdefault(event.attempt, event.wall)
    return starts


def _bars(run: RunData, end: float) -> Iterator[tuple[str, int | None, Bar]]:
    """Yield node, rank (None for the node itself) and bar of everything that was at work."""
    stops = node_stops(run.events)
    failure = run.verdict.first_failure if run.verdict else None
    opened: dict[tuple[str, int, int | None], float] = {}

    def close(
        node: str, attempt: int, rank: int | None, wall: float, state: str, how: str
    ) -> Iterator[tuple[str, int | None, Bar]]:
        start = opened.pop((node, attempt, rank), None)
        if start is not None:
            who = node if rank is None else f"rank {rank} on {node}"
            span = format_age(max(0.0, wall - start))
            title = printable(f"{who}, attempt {attempt + 1}: {span}, {how}")
            yield node, rank, Bar(start, max(start, wall), state, title)

    for event in run.events:
        body = event.body
        node = event.node
        attempt = event.attempt
        if isinstance(body, events.ProgramStarted):
            opened[node, attempt, None] = event.wall
        elif isinstance(body, events.RankStarted):
            yield from close(node, attempt, body.rank, event.wall, UNSEEN, "started again")
            opened[node, attempt, body.rank] = event.wall
        elif isinstance(body, (events.RankExited, events.ProgramExited)):
            rank = getattr(body, "rank", None)
            is_first = failure is not None and (failure.node, failure.rank) == (node, rank)
            was_stopped = stop_before(event, stops) is not None
            was_stopped |= body.signal in (signal.SIGTERM, signal.SIGKILL)
            how = describe_exit(body.code, body.signal)
            if body.code == 0:
                state = SUCCEEDED
            elif was_stopped and not is_first:
                state = STOPPED
                how = "was stopped"
            elif body.code is None and body.signal is None:
                state = UNSEEN
            else:
                state = FAILED
            yield from close(node, attempt, rank, event.wall, state, how)
        elif isinstance(body, (events.Ended, events.HostLost)):
            state = FAILED
            if isinstance(body, events.Ended):
                state = _STATES.get(body.state, STOPPED)
            left = [key for key in opened if key[:2] == (node, attempt)]
            for _, _, rank in left:
                seen = state if rank is None else UNSEEN
                yield from close(node, attempt, rank, event.wall, seen, event_text(body))
    state = UNSEEN if run.verdict else RUNNING
    for node, attempt, rank in list(opened):
        how = "no end seen" if run.verdict else "running"
        yield from close(node, attempt, rank, end, state, how)
