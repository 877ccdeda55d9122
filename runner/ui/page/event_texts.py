"""Texts of events, for a table of them and the ticks of a timeline."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from runner.core.protocol import events
from runner.core.protocol.events import EVENT_TYPES, Event, EventBody
from runner.core.protocol.states import State
from runner.core.text import describe_exit, format_size, join_some

INFO, STOPPED, WARNING, BAD = range(4)
"""How much an event asks to be looked at."""

KIND_NAMES = {cls: name.replace("_", " ") for name, cls in EVENT_TYPES.items()}

_BAD = (
    *(events.PeerLost, events.HostLost, events.EndUnverified),
    *(events.PortTaken, events.Stalled),
)
_WARNING = (
    *(events.Stopping, events.HubUnreachable, events.PeerDeparted, events.StopRequested),
    *(events.EventsDropped, events.RelaunchPending, events.Relaunching, events.NotRelaunched),
    *(events.RanksSignalled,),
)
_ENDS = {State.SUCCEEDED: INFO, State.STOPPED: STOPPED}
_SHOWN_APART = ("rank", "traceback", "facts")
_BYTES = ("max_rss",)


def event_level(body: EventBody, *, was_stopped: bool = False) -> int:
    """Return how much an event asks to be looked at; the end of what was stopped is no failure."""
    if isinstance(body, (events.RankExited, events.ProgramExited)):
        bad = STOPPED if was_stopped else BAD
        return INFO if body.code == 0 else bad
    if isinstance(body, events.Ended):
        level = _ENDS.get(body.state, BAD)
        return max(level, WARNING) if body.survivors or not body.verified else level
    if isinstance(body, _BAD):
        return BAD
    return WARNING if isinstance(body, _WARNING) else INFO


def event_rank(event: Event) -> int | None:
    """Return the rank that an event is about."""
    rank = getattr(event.body, "rank", None)
    return rank if isinstance(rank, int) else None


def event_text(body: EventBody) -> str:
    """Return what an event says besides its kind."""
    texts = []
    if isinstance(body, (events.RankExited, events.ProgramExited)):
        texts.append(describe_exit(body.code, body.signal))
    for field in dataclasses.fields(body):  # type: ignore[arg-type]
        if field.name in (*_SHOWN_APART, *(("code", "signal") if texts else ())):
            continue
        value = getattr(body, field.name)
        if value not in (None, "", 0, False, ()) and value != field.default:
            texts.append(_field_text(field.name, value))
    return ", ".join(texts)


def _field_text(name: str, value: Any) -> str:
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, tuple):
        value = join_some([str(each) for each in value])
    if name in _BYTES:
        return f"peak memory {format_size(int(value))}"
    if name in ("reason", "error", "exception", "state"):
        return str(value)
    words = name.replace("_", " ")
    return words if value is True else f"{words} {value}"
