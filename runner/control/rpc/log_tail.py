"""Log tailing: read the events and logs of one node by offset, with a bound on what is on its way.

Each file has at most one outstanding read, and those of all nodes together ask for no more than
MAX_OUTSTANDING_BYTES: unread output stays on its host, and a stop never queues behind it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from runner.control.rpc.session import HostSession
from runner.core.wire.codec import Frame, FrameError
from runner.core.wire.events import Event, RankExited, RankStarted, parse
from runner.core.wire.files import CHUNK
from runner.core.wire.paths import METRICS_STREAM, PROGRAM_LOG, STACKS_LOG, STREAMS, rank_source
from runner.core.wire.plan import NodePlan, Plan

MAX_EVENT_BYTES = 4 << 20
MAX_EVENTS_BYTES = 64 << 20
MAX_DISCOVERED_RANKS = 4096
"""Bytes of one event, and of all, and ranks the plan did not assign, that a node may report."""

RUN_LOGS = (*((PROGRAM_LOG, stream) for stream in STREAMS), (STACKS_LOG, "out"))
"""The logs of a node beside those of its ranks."""

MAX_OUTSTANDING_BYTES = 64 << 20
MIN_CHUNK = 4 << 10
"""Bytes that all hosts together may have been asked for: unread answers are kept in memory."""


def chunk_bytes(plan: Plan) -> int:
    """Return how much to read of each file at once, where all files of a run are read."""
    per_rank = len(STREAMS) + 1
    others = len(RUN_LOGS) + 1  # with the events
    file_count = sum(per_rank * node.nproc + others for node in plan.nodes)
    return max(MIN_CHUNK, min(CHUNK, MAX_OUTSTANDING_BYTES // max(1, file_count)))


@dataclass
class LogFile:
    """One file of one node in one attempt, read one chunk at a time."""

    source: str  # the rank or program it belongs to, or "events"
    stream: str  # out, err, or "" for events
    attempt: int
    offset: int = 0  # where the next chunk begins
    is_started: bool = False
    is_complete: bool = False

    def request(
        self,
        session: HostSession,
        start_at: Mapping[str, float] = MappingProxyType({}),
        *,
        wait: bool = True,
        max_bytes: int = CHUNK,
    ) -> int:
        """Request the next chunk, of at most `max_bytes`; return the request's id.

        A file begins at `start_at`: `tail` lines before its end.
        With `wait` the host waits for more at the end of a file that may still grow.
        """
        source = {"source": self.source, "stream": self.stream, "attempt": self.attempt}
        options = {**({} if wait else {"wait": False}), **({} if self.is_started else start_at)}
        return session.request("read", {**source, "offset": self.offset, "n": max_bytes, **options})

    def on_chunk(self, offset: int, size: int, *, eof: bool) -> None:
        """Note a chunk that came."""
        self.offset = offset + size
        self.is_started = True
        self.is_complete = eof


class LogTailer:
    """The events and logs of one node in one attempt.

    `sink` takes (source, stream, offset, bytes) of the logs, in order per file. `start_at`, `wait`
    and `max_bytes` are those of `LogFile.request`. With `ranks`, only their logs are read; ranks
    that torch assigns are discovered from the events. Events of another run, node or rank are
    dropped, and counted.
    """

    def __init__(
        self,
        node_plan: NodePlan,
        sink: Callable[[str, str, int, bytes], None],
        *,
        start_at: Mapping[str, float] = MappingProxyType({}),
        ranks: Container[int] | None = None,
        max_bytes: int = CHUNK,
        wait: bool = True,
    ) -> None:
        self.dropped_events = self._event_bytes = 0
        self._node_plan = node_plan
        self._attempt = node_plan.order.attempt
        self._sink = sink
        self._start_at = start_at
        self._events = LogFile("events", "", self._attempt)
        self._ranks = ranks
        self._max_bytes = max_bytes
        self._wait = wait
        chosen_ranks = [rank for rank in node_plan.ranks if self._is_wanted(rank)]
        sources = map(rank_source, chosen_ranks)
        log_streams = [*itertools.product(sources, self._rank_streams)]
        log_streams += RUN_LOGS if ranks is None else ()
        self._files = [self._events, *(LogFile(*pair, self._attempt) for pair in log_streams)]
        self._discovered_ranks: set[int] = set()
        self._pending_reads: dict[int, LogFile] = {}
        self._held_back: list[LogFile] = []
        self._partial_line = b""

    @property
    def is_complete(self) -> bool:
        """Whether every file has been read to its end."""
        return all(file.is_complete for file in self._files)

    def start(self, session: HostSession) -> None:
        """Request every incomplete file from its offset, over the first session or a new one."""
        self._pending_reads.clear()
        self._held_back.clear()
        for file in self._files:
            if not file.is_complete:
                self._request(session, file)

    def on_data(self, session: HostSession, frame: Frame, *, hold_back: bool) -> Iterator[Event]:
        """Take the reply to a read; yield the events in it, and request what follows."""
        offset = frame.data["offset"]
        eof = frame.data["eof"]
        chunk = frame.payload
        file = self._pending_reads.pop(frame.data["id"], None)
        if file is None:
            return
        file.on_chunk(offset, len(chunk), eof=eof)
        if file is self._events:
            self._event_bytes += len(chunk)
            if self._event_bytes > MAX_EVENTS_BYTES:
                raise FrameError("more events than a run can have")
            for event in self._parse(chunk):
                self._discover_rank(session, event)
                yield event
        elif chunk:
            self._sink(file.source, file.stream, offset, chunk)
        if not eof and hold_back and file is not self._events:
            self._held_back.append(file)
        elif not eof:
            self._request(session, file)

    @property
    def _rank_streams(self) -> tuple[str, ...]:
        return (*STREAMS, METRICS_STREAM) if self._ranks is None else STREAMS

    def _is_wanted(self, rank: int) -> bool:
        return self._ranks is None or rank in self._ranks

    def _discover_rank(self, session: HostSession, event: Event) -> None:
        """Follow the logs of a rank that the plan did not assign to this node.

        One whose program cannot be executed has an end without a start.
        """
        body = event.body
        if not isinstance(body, (RankStarted, RankExited)) or not self._is_wanted(body.rank):
            return
        if body.rank not in {*self._node_plan.ranks, *self._discovered_ranks}:
            self._discovered_ranks.add(body.rank)
            if len(self._discovered_ranks) > MAX_DISCOVERED_RANKS:
                raise FrameError(f"events of more than {MAX_DISCOVERED_RANKS} ranks")
            for stream in self._rank_streams:
                self._files.append(LogFile(rank_source(body.rank), stream, self._attempt))
                self._request(session, self._files[-1])

    def reopen(self) -> None:
        """Expect every file to grow again: the node rejoined."""
        for file in self._files:
            file.is_complete = False

    def resume_held_back(self, session: HostSession) -> None:
        """Request the files that were held back."""
        held_back = self._held_back
        self._held_back = []
        for file in held_back:
            self._request(session, file)

    def _request(self, session: HostSession, file: LogFile) -> None:
        is_log = file is not self._events and file.source != STACKS_LOG
        start_at = self._start_at if is_log else {}
        request_id = file.request(session, start_at, wait=self._wait, max_bytes=self._max_bytes)
        self._pending_reads[request_id] = file

    def _parse(self, chunk: bytes) -> Iterator[Event]:
        order = self._node_plan.order
        ranks = self._node_plan.ranks
        of_rank = (RankStarted, RankExited)
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        if len(self._partial_line) > MAX_EVENT_BYTES:
            raise FrameError("an event without an end")
        for line in filter(None, lines):
            try:
                event = parse(line.decode())
            except ValueError:  # torn by a full disk or a power cut
                self.dropped_events += 1
                continue
            if (event.run_id, event.node) != (order.run_id, order.node):
                self.dropped_events += 1
            elif event.attempt != self._attempt:
                continue  # its node may have had other ranks then
            elif ranks and isinstance(event.body, of_rank) and event.body.rank not in ranks:
                self.dropped_events += 1
            else:
                yield event
