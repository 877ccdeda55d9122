"""Journal of a run on one host: its events, appended with a sequence number, and its state."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Dict, List, Optional

from runner.core.model.plan import Order
from runner.core.protocol.events import (
    Ended,
    Event,
    EventBody,
    ProgramStarted,
    RankExited,
    RelaunchPending,
    parse,
)
from runner.core.protocol.paths import RunPaths
from runner.core.protocol.states import TRANSITIONS, State
from runner.host.storage.run_folder import append, read_state, write_state


class EventLog:
    """The events and the state of one run on one host."""

    def __init__(self, folder: RunPaths, order: Order) -> None:
        self._folder = folder
        self._order = order
        self._seq = 1 + max((event.seq for event in read_events(folder)), default=0)
        self.state = read_state(folder) or State.STARTING
        self.write_error = ""  # why something could not be written
        self._finalising = False
        self._terminate_torn_line()

    def _terminate_torn_line(self) -> None:
        """End a line that a power cut left unfinished, so that the next event begins a new one."""
        with contextlib.suppress(OSError), open(self._folder.events, "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                file.write(b"\n")

    def append(
        self, body: EventBody, mono: Optional[float] = None, wall: Optional[float] = None
    ) -> None:
        """Record that something happened, now or at the given times; `mono` alone is enough."""
        order = self._order
        now = time.monotonic()
        mono = now if mono is None else mono
        wall = time.time() - (now - mono) if wall is None else wall
        event = Event(order.run_id, order.node, order.attempt, self._seq, wall, mono, body)
        self._seq += 1
        self._write(event.to_line().encode())

    def _write(self, line: bytes) -> None:
        """Append one whole line; on a full disk the ballast makes room for it."""
        try:
            append(self._folder.events, line)
        except OSError as error:
            problem = os.strerror(error.errno or 0)
            self.write_error = self.write_error or f"cannot write its record: {problem}"
            self._make_room()
            with contextlib.suppress(OSError):
                append(self._folder.events, b"\n" + line)  # the line break ends a torn line

    def append_exit(
        self, rank: int, data: Dict[str, Any], error: str = "", raised: str = ""
    ) -> None:
        """Record a rank's end as its shim saw it; `error` and `raised` add to that."""
        traceback = str(data.get("traceback", ""))
        exit_fields = (data["code"], data["signal"], int(data["max_rss"]))
        body = RankExited(rank, *exit_fields, error, traceback, int(data["start"]), raised)
        self.append(body, mono=float(data["mono"]), wall=float(data["wall"]))

    def set_state(self, state: State) -> None:
        """Move to the next state, or raise ValueError if the table does not allow that."""
        if state not in TRANSITIONS[self.state]:
            raise ValueError(f"{self.state.value} cannot become {state.value}")
        self.state = state
        try:
            write_state(self._folder, state)
        except OSError:  # a full disk; if even the ballast is not enough, the events tell
            if state.is_terminal:
                self._make_room()
                with contextlib.suppress(OSError):
                    write_state(self._folder, state)

    def _make_room(self) -> None:
        """Free one ballast file now, the other when no rank can take its space any more."""
        with contextlib.suppress(OSError):
            os.unlink(self._folder.ballast)
        if self._finalising:
            with contextlib.suppress(OSError):
                os.unlink(self._folder.last_ballast)

    def finalise(self, ended: Ended) -> None:
        """Complete the record: the last event, which is authoritative, then the state."""
        self._finalising = True
        self.append(ended)
        with contextlib.suppress(OSError), open(self._folder.events, "rb") as file:
            os.fsync(file.fileno())
        self.set_state(ended.state)

    def reopen(self) -> None:
        """Allow completing a record whose state is final but whose events were lost (power cut)."""
        if self.state.is_terminal:
            self.state = State.STOPPING


def read_events(folder: RunPaths) -> List[Event]:
    """Return the events on record; an unfinished last line (power cut) is left out."""
    try:
        with open(folder.events, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    events = []
    for line in lines:
        with contextlib.suppress(ValueError):
            events.append(parse(line))
    return events


def has_ended(folder: RunPaths, order: Order) -> bool:
    """Return whether an attempt has its last event; a full disk may have no room for its state."""
    return final_state(folder, order.attempt) is not None


def is_relaunch_pending(folder: RunPaths, order: Order) -> bool:
    """Return whether this attempt is over, and the hosts decide about another one."""
    events = (event for event in read_events(folder) if event.attempt == order.attempt)
    return any(isinstance(event.body, RelaunchPending) for event in events)


def final_state(folder: RunPaths, attempt: Optional[int] = None) -> Optional[State]:
    """Return the final state of an attempt, or of the last one; None if it has not ended.

    An attempt whose program was started again after its end has not ended.
    """
    state: Optional[State] = None
    for event in read_events(folder):
        if attempt is None or event.attempt == attempt:
            if isinstance(event.body, Ended):
                state = event.body.state
            elif isinstance(event.body, ProgramStarted):
                state = None
    return state
