"""The run folder on a host: written here and nowhere else."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from runner.core import shell
from runner.core.codec import encode
from runner.core.events import Body, Ended, Event, RankExited, parse
from runner.core.layout import FORMAT, RunFolder
from runner.core.order import Order
from runner.core.states import LEGAL, State


def write_aside(path: str, text: str, mode: int = 0o600) -> None:
    """Write a file whole or not at all: a neighbour first, then a rename."""
    aside = f"{path}.{os.getpid()}.new"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(aside, path)


def prepare(folder: RunFolder, order: Order, shim_code: str) -> None:
    """Make the run folder of a new attempt: format, order, shim.

    Raises:
        OSError: No file can be written there, or a run of this id has been here before.
    """
    before = os.umask(0o077)  # for the folders above too; the ranks keep the user's own
    try:
        if order.attempt == 0:
            os.makedirs(os.path.dirname(folder.root), exist_ok=True)
            os.mkdir(folder.root)  # a record is never written over
        os.mkdir(folder.attempt(order.attempt))
        os.makedirs(folder.work, exist_ok=True)
    finally:
        os.umask(before)
    write_aside(folder.format, f"{FORMAT}\n")
    write_aside(folder.state, _state_text(State.STARTING))
    write_aside(folder.order, json.dumps(encode(order), indent=1) + "\n")
    write_aside(folder.shim_code, shim_code)
    words = [
        *(order.shim_python, "-I", "-S", folder.shim_code, folder.attempt(order.attempt)),
        *(",".join(order.hide), str(len(order.rank_prefix)), *order.rank_prefix),
    ]
    command = shell.line(words, paths=1)
    write_aside(folder.shim, f'#!/bin/sh\nexec {command} "$@"\n', mode=0o700)
    write_aside(folder.ballast, "\0" * BALLAST)


BALLAST = 64 << 10
"""Bytes set aside at the start, so that a full disk does not keep the end off the record."""


class Journal:
    """The events and the state of one run on one host.

    `failed` says why something could not be written.
    """

    def __init__(self, folder: RunFolder, order: Order) -> None:
        self._folder = folder
        self._order = order
        self._seq = 1 + max((event.seq for event in read_events(folder)), default=0)
        self.state = read_state(folder) or State.STARTING
        self.failed = ""

    def append(
        self, body: Body, mono: Optional[float] = None, wall: Optional[float] = None
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
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._write(event.line().encode(), flags)

    def _write(self, line: bytes, flags: int) -> None:
        """Append one whole line, also where the disk is full: then the ballast makes room."""
        descriptor = os.open(self._folder.events, flags, 0o600)
        try:
            if os.write(descriptor, line) == len(line):
                return
            why = os.strerror(errno.ENOSPC)
        except OSError as error:
            why = os.strerror(error.errno or 0)
        finally:
            os.close(descriptor)
        self.failed = self.failed or f"cannot write its record: {why}"
        with contextlib.suppress(OSError):
            os.unlink(self._folder.ballast)
            descriptor = os.open(self._folder.events, flags, 0o600)
            os.write(descriptor, b"\n" + line)  # whatever was torn before ends here
            os.close(descriptor)

    def append_exit(self, rank: int, data: Dict[str, Any]) -> None:
        """Record a rank's end as its shim wrote it down, at the time it did."""
        body = RankExited(rank, data["code"], data["signal"], int(data["max_rss"]))
        self.append(body, mono=float(data["mono"]), wall=float(data["wall"]))

    def enter(self, state: State) -> None:
        """Move to the next state.

        Raises:
            ValueError: That move is not in the table.
        """
        if state not in LEGAL[self.state]:
            raise ValueError(f"{self.state.value} cannot become {state.value}")
        self.state = state
        with contextlib.suppress(OSError):  # the events say it as well
            write_aside(self._folder.state, _state_text(state))

    def end(self, ended: Ended) -> None:
        """Close the record: the state, then the last event."""
        self.enter(ended.state)
        self.append(ended)


def read_events(folder: RunFolder) -> List[Event]:
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


def closed(folder: RunFolder, order: Order) -> bool:
    """Whether the record of this attempt has its last event.

    The events tell, not the state: on a full disk only they still have room.
    """
    return any(
        isinstance(event.body, Ended) and event.attempt == order.attempt
        for event in read_events(folder)
    )


def _state_text(state: State) -> str:
    return json.dumps({"state": state.value, "pid": os.getpid(), "wall": time.time()}) + "\n"


def read_state(folder: RunFolder) -> Optional[State]:
    """Return the state on record, None when there is none that can be read."""
    try:
        with open(folder.state, encoding="utf-8") as file:
            return State(json.load(file)["state"])
    except (OSError, ValueError, KeyError):
        return None


def rank_records(attempt: str, seen: Set[str]) -> List[Tuple[str, int, Dict[str, Any]]]:
    """Return what the rank shims wrote since the last call, in the order in which it happened.

    Each is "start" or "exit", the rank, and the record; `seen` remembers the files.
    """
    try:
        names = os.listdir(attempt)
    except OSError:
        return []
    found = []
    for name in names:
        stem, _, kind = name.rpartition(".")
        if name in seen or kind not in ("start", "exit") or not stem.startswith("rank_"):
            continue
        try:
            with open(os.path.join(attempt, name), encoding="ascii") as file:
                data = json.load(file)
        except (OSError, ValueError):
            continue
        seen.add(name)
        found.append((kind, int(stem[len("rank_") :]), data))
    return sorted(found, key=lambda record: float(record[2]["mono"]))
