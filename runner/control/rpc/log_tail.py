"""Log tail: the events and logs of one node, which its host streams from an offset.

The host sends as much as this machine has room for, so that unread output stays there, and a stop
never waits behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from runner.control.rpc.session import HostSession
from runner.core.wire.codec import Frame, FrameError
from runner.core.wire.events import Event, RankExited, RankStarted, parse
from runner.core.wire.paths import EVENTS_FILE, log_order
from runner.core.wire.plan import NodePlan

STREAM_KINDS = ("events", "data", "streamed")
"""The replies that belong to a stream of logs."""

MAX_EVENTS_BYTES = 64 << 20
MAX_DISCOVERED_RANKS = 4096
"""Bytes of events, and ranks that the plan did not assign, that a node may report."""

LogSink = Callable[[str, str, int, bytes], None]
"""Takes (source, stream, offset, bytes) of the logs, in order per file."""


class LogTailer:
    """The events and logs of one node in one attempt.

    Each log that is there at first begins `tail` lines before its end, without `tail` at its
    beginning. With `ranks`, only their logs are read. With `once`, logs are read as they are now,
    and no events. Events of another run, node or rank are dropped, and counted.
    """

    def __init__(
        self,
        node_plan: NodePlan,
        sink: LogSink,
        *,
        tail: int | None = None,
        ranks: Collection[int] | None = None,
        once: bool = False,
    ) -> None:
        self.dropped_events = 0
        self.is_complete = False  # to its end, as far as it is read
        self.has_error = False  # a log could not be read to its end
        self._event_bytes = 0
        self._node_plan = node_plan
        self._attempt = node_plan.order.attempt
        self._sink = sink
        self._tail = tail
        self._has_others = ranks is None
        self.once = once
        self._ranks: set[int] | None = None  # None: whichever torch assigns
        if ranks is not None:
            self._ranks = {*ranks}
        if node_plan.ranks:
            planned = {*node_plan.ranks}
            self._ranks = planned if self._ranks is None else planned & self._ranks
        self._offsets: dict[str, int] = {}  # of what comes next, by file
        self._request_id = 0
        self._partial_line = b""

    def start(self, session: HostSession) -> None:
        """Have all that has not come streamed, over the first session or a new one."""
        request = {
            "attempt": self._attempt,
            "offsets": self._offsets,
            "ranks": None if self._ranks is None else sorted(self._ranks),
            "others": self._has_others,
            "once": self.once,
        }
        if self._tail is not None and not self._offsets.keys() - {EVENTS_FILE}:
            request["tail"] = self._tail
        self._request_id = session.request("stream", request)

    def stop(self, session: HostSession) -> None:
        if not self.is_complete:
            self._ranks = set()
            self._has_others = False
            self.once = True
            self.start(session)

    def reopen(self) -> None:
        """Expect every file to grow again: the node rejoined."""
        self.is_complete = False

    def on_frame(self, frame: Frame) -> Iterator[Event]:
        """Take a part of the stream, or its end; yield the events in it."""
        if frame.data["id"] != self._request_id:
            return
        if frame.kind == "streamed":
            self.is_complete = True
            return
        offset = frame.data["offset"]
        file = EVENTS_FILE
        if frame.kind == "data":
            file = frame.data["file"]
            if log_order(file, self._ranks, has_others=self._has_others) is None:
                raise FrameError(f"a log that nobody asked for: {file[:80]!r}")
        self._check_offset(file, offset)
        self._offsets[file] = offset + len(frame.payload)
        if frame.kind == "events":
            self._event_bytes += len(frame.payload)
            if self._event_bytes > MAX_EVENTS_BYTES:
                raise FrameError("more events than a run can have")
            yield from self._parse(frame.payload)
        elif frame.payload:
            source, _, stream = file.rpartition(".")
            self._sink(source, stream, offset, frame.payload)

    def _check_offset(self, file: str, offset: int) -> None:
        known = self._offsets.get(file, offset if self._tail is not None else 0)
        if offset != known:
            raise FrameError(f"bytes of {file} that do not follow the last ones")
        if file not in self._offsets and len(self._offsets) > 3 * MAX_DISCOVERED_RANKS:
            raise FrameError(f"logs of more than {MAX_DISCOVERED_RANKS} ranks")

    def _parse(self, chunk: bytes) -> Iterator[Event]:
        order = self._node_plan.order
        ranks = self._node_plan.ranks
        of_rank = (RankStarted, RankExited)
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
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
