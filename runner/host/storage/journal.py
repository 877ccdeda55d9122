"""Journal of a run on one host: its events, appended with a sequence number, and its state."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Dict, List, Optional

from runner.core.model.order import Order
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
    """The events and the state of one run on one host.

    `write_error` says why something could not be written.
    """

    def __init__(self, folder: RunPaths, order: Order) -> None:
        self._folder = folder
        self._order = order
        self._seq = 1 + max((event.seq for event in read_events(folder)), default=0)
        self.state = read_state(folder) or State.STARTING
        self.write_error = ""
        self._finalising = False
        self._terminate_torn_line()

    def _terminate_torn_line(self) -> None:
        """Have what a power cut tore end here, so that the next event is a line of its own."""
        with contextlib.suppress(OSError), open(self._folder.events, "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                file.write(b"\n")

    def append(
        self, body: EventBody, mono: Optional[float] = None, wall: Optional[float] = None
    ) -> None:
        """Record that something happened, now or at the given times."""
        order = self._order
        event = Event(
            run_id=order.run_id,
            node=order.node,
            attempt=order.attempt,
            seq=self._seq,
            wall=time.time() if wall is None else wall,
            mono=time.monotonic() if mono is None else mono,
            body=body,
        )
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
        """Record a rank's end as its shim wrote it down, at the time it did.

        `error` and `raised` say more of it.
        """
        traceback = str(data.get("traceback", ""))
        exit_fields = (data["code"], data["signal"], int(data["max_rss"]))
        body = RankExited(rank, *exit_fields, error, traceback, int(data["start"]), raised)
        self.append(body, mono=float(data["mono"]), wall=float(data["wall"]))

    def set_state(self, state: State) -> None:
        """Move to the next state.

        Raises:
            ValueError: That move is not in the table.
        """
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
        """Let go of what was set aside: one half now, the other once no rank can take it."""
        with contextlib.suppress(OSError):
            os.unlink(self._folder.ballast)
        if self._finalising:
            with contextlib.suppress(OSError):
                os.unlink(self._folder.last_ballast)

    def finalise(self, ended: Ended) -> None:
        """Close the record: the last event, which is what counts, then the state."""
        self._finalising = True
        self.append(ended)
        with contextlib.suppress(OSError), open(self._folder.events, "rb") as file:
            os.fsync(file.fileno())
        self.set_state(ended.state)

    def reopen(self) -> None:
        """Let a record be closed whose state says more than its events, as after a power cut."""
        if self.state.is_terminal:
            self.state = State.STOPPING


def read_events(folder: RunPaths) -> List[Event]:
    """Return what is recorded; a torn last line (power cut) is left out."""
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
    """Whether the record of this attempt has its last event.

    The events tell, not the state: on a full disk only they may have had room.
    """
    return final_state(folder, order.attempt) is not None


def is_relaunch_pending(folder: RunPaths, order: Order) -> bool:
    """Whether nothing of this attempt is left, and the hosts see whether another one follows."""
    events = (event for event in read_events(folder) if event.attempt == order.attempt)
    return any(isinstance(event.body, RelaunchPending) for event in events)


def final_state(folder: RunPaths, attempt: Optional[int] = None) -> Optional[State]:
    """Return how an attempt, or the last one, ended by its last event; None if it has none.

    What began once more has not ended.
    """
    state: Optional[State] = None
    for event in read_events(folder):
        if attempt is None or event.attempt == attempt:
            if isinstance(event.body, Ended):
                state = event.body.state
            elif isinstance(event.body, ProgramStarted):
                state = None
    return state
