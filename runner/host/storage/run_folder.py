"""The run folder on a host: written here and nowhere else."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

from runner.core import shell
from runner.core.codec import decode, encode
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
from runner.core.protocol.paths import FORMAT_VERSION, RunPaths
from runner.core.protocol.states import TRANSITIONS, State


def write_atomic(path: str, text: str, mode: int = 0o600, *, durable: bool = False) -> None:
    """Write a file whole or not at all: a neighbour first, then a rename.

    What is `durable` is on the disk before it has its name, so that no power cut leaves it empty.
    """
    temp_path = f"{path}.{os.getpid()}.new"
    descriptor = os.open(temp_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.rename(temp_path, path)


def create_run_folder(
    folder: RunPaths, order: Order, programs: Mapping[str, str], record: Mapping[str, Any]
) -> None:
    """Make the run folder of a new attempt: format, order, shim, and the `record` of the run.

    Where the attempt began here before, its folder stays as it is, with all that is in it.

    `programs` has the text of the shim as `shim`, and of the ranks' `sitecustomize`.

    Raises:
        OSError: No file can be written there, or a run of this id has been here before.
    """
    old_umask = os.umask(0o077)  # for the folders above too; the ranks keep the user's own
    try:
        os.makedirs(os.path.dirname(folder.root), exist_ok=True)
        is_later_start = order.attempt or order.rejoin_count
        if not (is_later_start and os.path.isdir(folder.root)):
            os.mkdir(folder.root)  # a record is never written over
        os.makedirs(folder.attempt_folder(order.attempt), exist_ok=bool(order.rejoin_count))
        for directory in (folder.work, folder.site):
            os.makedirs(directory, exist_ok=True)
    finally:
        os.umask(old_umask)
    write_atomic(folder.format, f"{FORMAT_VERSION}\n")
    write_atomic(folder.state, _state_text(State.STARTING), durable=True)
    if record:
        write_atomic(folder.info, json.dumps(record["info"], indent=1) + "\n", durable=True)
        write_atomic(folder.plan, json.dumps(record["plan"], indent=1) + "\n", durable=True)
        write_atomic(folder.config, record["config"], durable=True)
    write_atomic(folder.order, json.dumps(encode(order), indent=1) + "\n", durable=True)
    write_atomic(folder.shim_code, programs["shim"])
    write_atomic(os.path.join(folder.site, "sitecustomize.py"), programs["sitecustomize"])
    argv = [
        *(order.shim_python, "-I", "-S", folder.shim_code, folder.attempt_folder(order.attempt)),
        *(folder.site if order.stacks else "", ",".join(order.hidden_env)),
        *(str(len(order.rank_prefix)), *order.rank_prefix),
    ]
    command = shell.line(argv, paths=1)
    write_atomic(folder.shim, f'#!/bin/sh\nexec {command} "$@"\n', mode=0o700)
    for ballast in (folder.ballast, folder.last_ballast):
        write_atomic(ballast, "\0" * BALLAST)


def reserve_attempt(folder: RunPaths, attempt: int) -> bool:
    """Take the place of an attempt that has not begun here, so that it never will.

    Returns:
        False if it has begun.
    """
    path = folder.attempt_folder(attempt) if attempt else folder.root
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.mkdir(path, mode=0o700)
    except FileExistsError:
        return False
    return True


BALLAST = 64 << 10
"""Bytes set aside at the start, so that a full disk does not keep the end off the record."""


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
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._write(event.to_line().encode(), flags)

    def _write(self, line: bytes, flags: int) -> None:
        """Append one whole line, also where the disk is full: then the ballast makes room."""
        try:
            descriptor = os.open(self._folder.events, flags, 0o600)
            try:
                if os.write(descriptor, line) == len(line):
                    return
                problem = os.strerror(errno.ENOSPC)
            finally:
                os.close(descriptor)
        except OSError as error:
            problem = os.strerror(error.errno or 0)
        self.write_error = self.write_error or f"cannot write its record: {problem}"
        self._make_room()
        with contextlib.suppress(OSError):
            descriptor = os.open(self._folder.events, flags, 0o600)
            os.write(descriptor, b"\n" + line)  # whatever was torn before ends here
            os.close(descriptor)

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
        text = _state_text(state)
        try:
            write_atomic(self._folder.state, text)
        except OSError:  # a full disk; if nothing helps, the events say it as well
            if state.is_terminal:
                self._make_room()
                with contextlib.suppress(OSError):
                    write_atomic(self._folder.state, text)

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


def read_order(folder: RunPaths) -> Optional[Order]:
    """Return the order of a run, None where it never arrived or cannot be read."""
    try:
        with open(folder.order, encoding="utf-8") as file:
            return decode(Order, json.load(file))
    except (OSError, ValueError):
        return None


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


def _state_text(state: State) -> str:
    return json.dumps({"state": state.value, "pid": os.getpid(), "wall": time.time()}) + "\n"


def read_state(folder: RunPaths) -> Optional[State]:
    """Return the state on record, None when there is none that can be read."""
    try:
        with open(folder.state, encoding="utf-8") as file:
            return State(json.load(file)["state"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_rank_records(
    attempt_dir: str, read_names: Set[str]
) -> List[Tuple[str, int, Dict[str, Any]]]:
    """Return what the rank shims wrote since the last call, in the order in which it happened.

    Each is "start" or "exit", the rank, and the record, with the number of the start as `start`;
    `read_names` remembers the files.
    """
    try:
        names = os.listdir(attempt_dir)
    except OSError:
        return []
    records = []
    for name in names:
        stem, _, kind = name.rpartition(".")
        if name in read_names or kind not in ("start", "exit") or not stem.startswith("rank_"):
            continue
        try:
            with open(os.path.join(attempt_dir, name), encoding="ascii") as file:
                data = json.load(file)
        except (OSError, ValueError):
            continue
        read_names.add(name)
        rank, _, start = stem[len("rank_") :].partition(".")
        records.append((kind, int(rank), {**data, "start": int(start or 1)}))
    return sorted(records, key=lambda record: float(record[2]["mono"]))


def remove_sidecar_data(folder: RunPaths, order: Order) -> None:
    """Remove the data folder of the order's sidecar, if the sidecar ran on this node."""
    if order.sidecar is not None and order.sidecar.node == order.node:
        shutil.rmtree(folder.sidecar_folder(order.sidecar.name), ignore_errors=True)


def sample_log_sizes(folder: RunPaths, attempt: int, previous: Mapping[str, int]) -> Dict[str, int]:
    """Note which logs are longer than `previous`, and how long; return the length of all."""
    sizes: Dict[str, int] = {}
    try:
        for entry in os.scandir(folder.attempt_folder(attempt)):
            if entry.name.endswith((".out", ".err")):
                sizes[entry.name] = entry.stat().st_size
        grown = {name: size for name, size in sizes.items() if size != previous.get(name)}
        if grown:
            line = json.dumps({"wall": round(time.time(), 1), "sizes": grown}) + "\n"
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            descriptor = os.open(folder.log_sizes(attempt), flags, 0o600)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
    except OSError:  # a full disk is told elsewhere
        return dict(previous)
    return sizes
