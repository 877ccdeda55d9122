"""Timeline of a run: when each node was at work in each attempt, and what happened there."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field

from runner.core.history.run_data import RunData
from runner.core.outcome.first_failure import node_stops, stop_before
from runner.core.protocol import events
from runner.core.protocol.events import EVENT_TYPES, Event
from runner.core.protocol.states import State
from runner.core.text import describe_exit, format_age

KINDS = {body: name.replace("_", " ") for name, body in EVENT_TYPES.items()}

STARTS = (events.ProgramStarted, events.RankStarted, events.HubJoined)
"""Events that the bars show."""

FAULTS = (
    events.PeerLost,
    events.HostLost,
    events.EndUnverified,
    events.PortTaken,
    events.Stalled,
)

STATES = {State.SUCCEEDED: "succeeded", State.FAILED: "failed", State.STUCK: "failed"}

MAX_EVENT_TEXT = 400


@dataclass
class Bar:
    """A node's work in an attempt; its state is also its colour."""

    start: float
    end: float | None = None
    state: str = ""


@dataclass
class Row:
    """A node: a bar for each attempt, and the faults of the node and of its ranks."""

    bars: dict[int, Bar] = field(default_factory=dict)
    marks: list[Event] = field(default_factory=list)


@dataclass
class Timeline:
    """All nodes between two times, and the events that are no usual starts, True for a fault."""

    start: float
    end: float
    rows: dict[str, Row]
    events: list[tuple[Event, bool]]


def launch_time(run: RunData) -> float:
    """Return the launch, or the first that is known of the run."""
    if run.launched_at is not None:
        return run.launched_at
    return run.events[0].wall if run.events else 0.0


def timeline(run: RunData) -> Timeline:
    """Return the timeline of a run, its nodes in the order of their ranks."""
    start = launch_time(run)
    end = run.ended_at
    if end is None:
        seen = run.events[-1].wall if run.events else start
        end = seen if run.verdict else max(seen, time.time())
    stops = node_stops(run.events)
    rows = {share.node: Row() for plan in reversed(run.plans) for share in plan.nodes}
    told = []
    for event in run.events:
        body = event.body
        row = rows.setdefault(event.node, Row()) if event.node else Row()
        is_fault = isinstance(body, FAULTS)
        if isinstance(body, (events.ProgramStarted, events.RankStarted)):
            row.bars.setdefault(event.attempt, Bar(event.wall))
        bar = row.bars.get(event.attempt) or Bar(event.wall)
        was_stopped = stop_before(event, stops) is not None
        if isinstance(body, events.RankExited) and not was_stopped:
            is_fault = bool(body.code) or body.signal not in {None, signal.SIGTERM}
        elif isinstance(body, events.ProgramExited):
            bar.end = event.wall
            if was_stopped:
                bar.state = "stopped"
            elif body.code is not None or body.signal is not None:
                bar.state = "failed" if body.code or body.signal else "succeeded"
        elif isinstance(body, (events.Ended, events.HostLost)):
            bar.end = bar.end or event.wall
            bar.state = bar.state or STATES.get(getattr(body, "state", State.FAILED), "stopped")
        if is_fault:
            row.marks.append(event)
        if not isinstance(body, STARTS):
            told.append((event, is_fault))
    for row in rows.values():
        for bar in row.bars.values():
            bar.state = bar.state or ("unseen" if run.verdict else "running")
            bar.end = max(bar.start, bar.end or end)
    return Timeline(start, max(end, start + 1e-3), rows, told)


def event_text(event: Event) -> str:
    """Return what happened, in a few words."""
    body = event.body
    if isinstance(body, events.RankExited):
        how = describe_exit(body.code, body.signal)
        texts = [f"rank {body.rank} {how}", body.error, body.exception]
    elif isinstance(body, events.ProgramExited):
        texts = [f"program {describe_exit(body.code, body.signal)}", body.error]
    elif isinstance(body, events.Stalled):
        texts = [f"no progress for {format_age(body.seconds)}", body.problem]
    elif isinstance(body, events.Ended):
        texts = [f"ended: {body.state.value}", body.reason]
    else:
        texts = [KINDS[type(body)]]
        texts += [str(getattr(body, name, "")) for name in ("peer", "reason", "error")]
    return ", ".join(filter(None, texts))[:MAX_EVENT_TEXT]
