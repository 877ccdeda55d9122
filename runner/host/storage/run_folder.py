"""Run folder on a host: its creation and order, the ranks' records, and its journal.

The journal is the run's events on this host; the last of them says in which state the run is.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import time
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple, Union

from runner.core.wire.codec import decode, encode
from runner.core.wire.events import (
    Ended,
    Event,
    EventBody,
    ProgramStarted,
    RankExited,
    RelaunchPending,
    Stopping,
    parse,
)
from runner.core.wire.order import Order
from runner.core.wire.paths import PRELOAD_MODULES, RunPaths
from runner.core.wire.states import TRANSITIONS, State
from runner.host.process import pid_namespace, procfs
from runner.host.process.jobs import Submit, checkpoint, run_now
from runner.host.storage.permissions import make_folders, private_folder

BALLAST = 64 << 10  # bytes set aside at the start, so that the end can be recorded on a full disk


REPLACE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
"""How a record is written: never to where a link leads."""


def write_atomic(path: str, content: Union[str, bytes], *, durable: bool = False) -> None:
    """Write a file completely or not at all: under another name, then renamed.

    A `durable` file is on the disk before the rename, so that no power cut leaves it empty.
    """
    temp_path = f"{path}.{os.getpid()}.new"
    descriptor = os.open(temp_path, REPLACE, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.rename(temp_path, path)
    except OSError:  # such as a full disk, which this would fill for good
        with contextlib.suppress(OSError):
            os.unlink(temp_path)
        raise


def append(path: str, data: bytes) -> None:
    """Append to a file in one write; OSError if not all of it could be written."""
    descriptor = os.open(path, APPEND, 0o600)
    try:
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def mtime(path: str) -> float:
    """Return when a file was modified, 0 for one that is not there."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def make_marker(path: str, until: Optional[float] = None) -> None:
    """Make an empty file, modified at a time to come if one is given."""
    descriptor = os.open(path, REPLACE, 0o600)
    try:
        if until is not None:
            os.utime(descriptor, (until, until))
    finally:
        os.close(descriptor)


def create_run_folder(
    folder: RunPaths, order: Order, programs: Mapping[str, str], record: Mapping[str, Any]
) -> None:
    """Make the run folder of a new attempt; that of a node that rejoins keeps its content.

    `programs` are the texts of `shim`, `rank_facts`, `spawner`, `sitecustomize` and so on; `record`
    has the `info`, `plan` and `config` of the whole run.

    OSError: no file can be written, or there is a run of this id.
    """
    private_folder(order.workdir, "runs")
    preloads = folder.preload in order.program.launcher
    make_folders(os.path.dirname(folder.root))
    is_later_start = order.attempt or order.rejoin_count
    if not (is_later_start and os.path.isdir(folder.root)):
        os.mkdir(folder.root, 0o700)  # a record is never overwritten
    attempt_folder = folder.attempt_folder(order.attempt)
    if not (order.rejoin_count and os.path.isdir(attempt_folder)):
        os.mkdir(attempt_folder, 0o700)
    make_folders(folder.work)
    make_folders(folder.site)
    if order.container is not None:
        make_folders(folder.home)
    if preloads:
        make_folders(folder.preload_package)
    if record:
        write_atomic(folder.info, json.dumps(record["info"], indent=1) + "\n", durable=True)
        write_atomic(folder.plan, json.dumps(record["plan"], indent=1) + "\n", durable=True)
        write_atomic(folder.config, record["config"], durable=True)
    checkpoint()
    write_atomic(folder.order, json.dumps(encode(order), indent=1) + "\n", durable=True)
    checkpoint()
    write_atomic(folder.shim, programs["shim"])
    write_atomic(folder.rank_facts, programs["rank_facts"])
    write_atomic(os.path.join(folder.site, "sitecustomize.py"), programs["sitecustomize"])
    if order.spawns_ranks:
        write_atomic(folder.spawner, programs["spawner"])
    if preloads:
        write_atomic(folder.preload, programs["preload"])
        for name in PRELOAD_MODULES:
            write_atomic(os.path.join(folder.preload_package, f"{name}.py"), programs[name])
    for ballast in (folder.ballast, folder.last_ballast):
        checkpoint()
        write_atomic(ballast, "\0" * BALLAST)


def reserve_attempt(folder: RunPaths, attempt: int) -> bool:
    """Make the folder of an attempt, so that it cannot begin here; return False if it has."""
    path = folder.attempt_folder(attempt) if attempt else folder.root
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.mkdir(path, mode=0o700)
    except FileExistsError:
        return False
    return True


def read_order(folder: RunPaths) -> Optional[Order]:
    with contextlib.suppress(OSError, ValueError), open(folder.order, encoding="utf-8") as file:
        return decode(Order, json.load(file))
    return None


def read_rank_records(folder: str, read_names: Set[str]) -> List[Tuple[str, int, Dict[str, Any]]]:
    """Return the records that shims wrote since the last call, in the order of events.

    Each is "start" or "exit", the rank, and the record, with the number of the start as `start`,
    and as `written_at` when the clock of the disk says that it was written. `read_names` holds the
    files that were read.
    """
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    records = []
    for name in names:
        stem, _, kind = name.rpartition(".")
        if name in read_names or kind not in ("start", "exit") or not stem.startswith("rank_"):
            continue
        try:
            with open(os.path.join(folder, name), encoding="ascii") as file:
                data = json.load(file)
                written_at = os.fstat(file.fileno()).st_mtime
        except (OSError, ValueError):
            continue
        read_names.add(name)
        rank, _, start = stem[len("rank_") :].partition(".")
        namespace = int(data.get("pid_namespace", 0))
        if kind == "start" and namespace not in (0, pid_namespace.namespace_of()):
            ticks = int(data.get("start_ticks", 0))
            data["pid"] = pid_namespace.outer_pid(int(data["pid"]), namespace, ticks)
            process = procfs.read_process(data["pid"])
            data["parent"] = process.ppid if process else 0
            shim = (int(data["shim"]), namespace, int(data.get("shim_ticks", 0)))
            data["shim"] = pid_namespace.outer_pid(*shim)
        file_data = {"start": int(start or 1), "written_at": written_at}
        records.append((kind, int(rank), {**data, **file_data}))
    return sorted(records, key=lambda record: float(record[2]["mono"]))


class EventLog:
    """The events of one run on one host; `submit` decides who writes them, in order.

    `write_error` says why something could not be written.
    """

    def __init__(self, folder: RunPaths, order: Order, submit: Submit = run_now) -> None:
        self._folder = folder
        self._order = order
        self._submit = submit
        self._seq = 0  # of the last event on record
        self.state = State.RUNNING if order.is_standby else State.STARTING
        self.write_error = ""
        self._finalising = False
        submit(self._open)

    def _open(self) -> None:
        """Go on where the record ends; a line that a power cut left unfinished is ended."""
        self._seq = max((event.seq for event in read_events(self._folder)), default=0)
        with contextlib.suppress(OSError):
            with open(self._folder.events, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                is_torn = size and os.pread(file.fileno(), 1, size - 1) != b"\n"
            if is_torn:
                append(self._folder.events, b"\n")

    def append(
        self, body: EventBody, mono: Optional[float] = None, wall: Optional[float] = None
    ) -> None:
        """Record that something happened, now or at the given times; `mono` alone is enough."""
        order = self._order
        state = _state_by(body)
        if state in TRANSITIONS[self.state]:
            self.state = state
        now = time.monotonic()
        mono = now if mono is None else mono
        wall = time.time() - (now - mono) if wall is None else wall
        event = Event(order.run_id, order.node, order.attempt, 0, wall, mono, body)
        self._submit(functools.partial(self._write, event))

    def _write(self, event: Event) -> None:
        """Append one whole line; on a full disk the ballast makes room for it."""
        self._seq += 1
        line = replace(event, seq=self._seq).to_line().encode()
        try:
            append(self._folder.events, line)
        except OSError as error:
            problem = os.strerror(error.errno or 0)
            self.write_error = self.write_error or f"cannot write its record: {problem}"
            with contextlib.suppress(OSError):
                os.unlink(self._folder.ballast)
            if self._finalising:  # no rank can take its space any more
                with contextlib.suppress(OSError):
                    os.unlink(self._folder.last_ballast)
            with contextlib.suppress(OSError):
                append(self._folder.events, b"\n" + line)  # the line break ends a torn line

    def append_exit(self, rank: int, data: Mapping[str, Any], **found: Any) -> RankExited:
        """Record a rank's end as its shim saw it; what was `found` in logs adds to that."""
        body = decode(RankExited, {**data, "rank": rank, **found})
        self.append(body, mono=float(data["mono"]), wall=float(data["wall"]))
        return body

    def finalise(self, ended: Ended) -> None:
        self._finalising = True
        self.append(ended)
        self._submit(self._sync)

    def _sync(self) -> None:
        with contextlib.suppress(OSError), open(self._folder.events, "rb") as file:
            os.fsync(file.fileno())


def read_events(folder: RunPaths) -> List[Event]:
    """Return the events on record; an unfinished last line (power cut) is left out."""
    events = []
    for line in procfs.read_text(folder.events).splitlines():
        with contextlib.suppress(ValueError):
            events.append(parse(line))
    return events


def read_state(folder: RunPaths, order: Optional[Order] = None) -> Optional[State]:
    """Return the state of an attempt, by default of the last one; None where it has no order.

    An attempt whose program was started again after its end has not ended.
    """
    order = order or read_order(folder)
    if order is None:
        return None
    for event in reversed(read_events(folder)):
        state = _state_by(event.body) if event.attempt == order.attempt else None
        if state is not None:
            return state
    return State.RUNNING if order.is_standby else State.STARTING


def _state_by(body: EventBody) -> Optional[State]:
    """Return the state in which an event shows a run, None for one that does not tell."""
    if isinstance(body, Ended):
        return body.state
    if isinstance(body, Stopping):
        return State.STOPPING
    return State.RUNNING if isinstance(body, ProgramStarted) else None


def has_ended(folder: RunPaths, order: Order) -> bool:
    state = read_state(folder, order)
    return state is not None and state.is_terminal


def is_relaunch_pending(folder: RunPaths, order: Order) -> bool:
    """Return whether this attempt is over, and the hosts decide about another one."""
    events = (event for event in read_events(folder) if event.attempt == order.attempt)
    return any(isinstance(event.body, RelaunchPending) for event in events)
