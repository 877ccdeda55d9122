"""Log dump: the logs of a run as they are now, read ahead and shown rank after rank."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from runner.control.rpc.log_tail import LogFile, LogTailer
from runner.control.rpc.session import HostSession, Inbox
from runner.control.rpc.wait import TICK_S, WaitLoop
from runner.core.errors import Problem
from runner.core.wire.codec import Frame, encode
from runner.core.wire.events import RankExited, RankStarted
from runner.core.wire.paths import STREAMS, rank_source
from runner.core.wire.plan import NodePlan

READ_AHEAD = 32
"""How many files are requested before it is their turn."""


class RankDiscovery(WaitLoop):
    """The ranks each node of a run has, or had, read from its events."""

    def ranks_by_node(self, node_plans: Sequence[NodePlan]) -> dict[str, tuple[int, ...]]:
        """Return the ranks that were started on each node that answers."""
        self.problems: dict[str, str] = {}  # why the ranks of a node are not known
        self._unread: dict[str, LogTailer] = {}
        self._ranks: dict[str, set[int]] = {}
        for node_plan in node_plans:
            name = node_plan.node
            if session := self.sessions.get(name):
                self._ranks[name] = set()
                self._unread[name] = LogTailer(node_plan, lambda *_: None, ranks=(), wait=False)
                _follow(session, node_plan)
                self._unread[name].start(session)
        self.wait()
        return {name: tuple(sorted(ranks)) for name, ranks in self._ranks.items()}

    def _pending(self) -> Collection[str]:
        return list(self._unread)

    def _on_lost(self, name: str, reason: str) -> None:
        self.problems[name] = reason
        del self._unread[name]

    def _on_frame(self, name: str, frame: Frame) -> bool:
        tailer = self._unread[name]
        if frame.kind == "data":
            for event in tailer.on_data(self.sessions[name], frame, hold_back=False):
                if isinstance(event.body, (RankStarted, RankExited)):
                    self._ranks[name].add(event.body.rank)
        if frame.kind == "refused" or tailer.is_complete:
            del self._unread[name]
            return True
        return frame.kind == "data" and bool(frame.payload)


@dataclass
class _RankLog:
    """One log of a rank, and the part of it that is not shown yet."""

    node: str
    rank: int
    file: LogFile
    buffered: bytes = b""
    is_requested: bool = False


class LogDump(WaitLoop):
    """The logs of some ranks, each from `start_at` (see `LogFile.request`).

    `sink` takes (node, rank, stream, bytes), rank after rank, in order per file; `is_full` returns
    whether it can take no more for now.
    """

    def __init__(
        self,
        sessions: Mapping[str, HostSession],
        inbox: Inbox,
        lost_s: float,
        sink: Callable[[str, int, str, bytes], None],
        start_at: Mapping[str, float],
        is_full: Callable[[], bool],
        show: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        super().__init__(sessions, inbox, lost_s, show)
        self._sink = sink
        self._start_at = start_at
        self._is_full = is_full
        self._logs: list[_RankLog] = []
        self._requests: dict[tuple[str, int], _RankLog] = {}
        self.problems: dict[str, Problem] = {}  # why the logs of a node are missing or incomplete

    def run(self, node_plans: Sequence[NodePlan], ranks: Sequence[int]) -> None:
        """Show all that these ranks have written until now; raise Interrupted by a signal."""
        for node_plan in node_plans:
            node_ranks = [rank for rank in node_plan.ranks if rank in ranks]
            session = self.sessions.get(node_plan.node)
            if not node_ranks or session is None:
                continue
            _follow(session, node_plan)
            for rank, stream in itertools.product(node_ranks, STREAMS):
                file = LogFile(rank_source(rank), stream, node_plan.order.attempt)
                self._logs.append(_RankLog(node_plan.node, rank, file))
        self.wait()

    def _pending(self) -> set[str]:
        return {log.node for log in self._logs}

    def _owes_answer(self, name: str) -> bool:
        return any(node == name for node, _ in self._requests)

    def _tick(self) -> float:
        """Show what can be shown and request what comes next; of later files, the beginning."""
        while self._logs:
            log = self._logs[0]
            chunk = log.buffered
            log.buffered = b""
            if chunk:
                self._sink(log.node, log.rank, log.file.stream, chunk)
            if not log.file.is_complete:
                if not log.is_requested and not self._is_full():
                    self._request(log)
                break
            del self._logs[0]
        for log in self._logs[1:READ_AHEAD]:
            if not log.file.is_started and not log.is_requested:
                self._request(log)
        return TICK_S

    def _request(self, log: _RankLog) -> None:
        request_id = log.file.request(self.sessions[log.node], self._start_at, wait=False)
        self._requests[log.node, request_id] = log
        log.is_requested = True

    def _on_frame(self, name: str, frame: Frame) -> bool:
        if frame.kind == "refused":
            self._on_lost(name, frame.data["reason"])
            return True
        log = None
        if frame.kind == "data" and (log := self._requests.pop((name, frame.data["id"]), None)):
            log.buffered = frame.payload
            log.is_requested = False
            log.file.on_chunk(frame.data["offset"], len(frame.payload), eof=frame.data["eof"])
            if error := frame.data.get("error"):
                self.problems[name] = Problem(name, f"the end of a log cannot be read: {error}")
        return log is not None

    def _on_lost(self, name: str, reason: str) -> None:
        self.problems[name] = Problem(name, reason)
        self._logs = [log for log in self._logs if log.node != name]


def _follow(session: HostSession, node_plan: NodePlan) -> None:
    session.request("follow", {"order": encode(node_plan.order), "read_only": True})
