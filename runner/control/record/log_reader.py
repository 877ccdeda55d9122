"""The logs of a run as they are now, rank after rank: read ahead, shown in order."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runner.control.rpc.session import HostSession, Inbox
from runner.control.rpc.wait import TICK_S, WaitLoop
from runner.core.codec import encode
from runner.core.errors import Problem
from runner.core.model.plan import NodePlan
from runner.core.protocol.events import RankStarted, parse
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import STREAMS, rank_source
from runner.core.protocol.remote_files import CHUNK

READ_AHEAD = 32
"""So many files are asked for before it is their turn."""


@dataclass
class _LogFile:
    """One file: who has it, and what came of it so far."""

    node_plan: NodePlan
    rank: int
    stream: str
    buffered: bytes = b""
    offset: int = 0
    is_started: bool = False
    is_requested: bool = False
    is_complete: bool = False


class RankDiscovery(WaitLoop):
    """The ranks each node of a run has, or had, read from its events."""

    def __init__(self, sessions: Mapping[str, HostSession], inbox: Inbox, lost_s: float) -> None:
        super().__init__(sessions, inbox, lost_s)
        self._event_bytes: dict[str, bytes] = {}
        self._pending: set[str] = set()

    def ranks_by_node(self, node_plans: Sequence[NodePlan]) -> dict[str, tuple[int, ...]]:
        """Return the ranks that were started on each node that answers.

        Raises:
            Interrupted: By a signal.
        """
        for node_plan in node_plans:
            if node_plan.node in self.sessions:
                session = self.sessions[node_plan.node]
                session.request("follow", {"order": encode(node_plan.order), "read_only": True})
                self._event_bytes[node_plan.node] = b""
                self._pending.add(node_plan.node)
                self._request(node_plan.node)
        self.wait()
        return {
            node_plan.node: self._started_ranks(node_plan)
            for node_plan in node_plans
            if node_plan.node in self._event_bytes
        }

    def pending(self) -> set[str]:
        """Return the nodes whose events are not read to their end."""
        return self._pending

    def on_lost(self, name: str, reason: str) -> None:
        """Go on without a node."""
        del reason
        self._pending.discard(name)

    def _request(self, name: str) -> None:
        source = {"source": "events", "stream": "", "attempt": 0, "wait": False}
        request = {**source, "offset": len(self._event_bytes[name]), "n": CHUNK}
        self.sessions[name].request("read", request)

    def on_frame(self, name: str, frame: Frame) -> None:
        """Take a part of a node's events."""
        if frame.kind == "refused":
            self._pending.discard(name)
        elif frame.kind == "data":
            self._event_bytes[name] += frame.payload
            if frame.data["eof"]:
                self._pending.discard(name)
            else:
                self._request(name)

    def _started_ranks(self, node_plan: NodePlan) -> tuple[int, ...]:
        ranks = set()
        for line in self._event_bytes[node_plan.node].decode(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                event = parse(line)
                is_ours = event.attempt == node_plan.order.attempt
                if is_ours and isinstance(event.body, RankStarted):
                    ranks.add(event.body.rank)
        return tuple(sorted(ranks))


class LogDump(WaitLoop):
    """The logs of some ranks.

    Args:
        sessions: The hosts that answer, by node.
        inbox: Where all sessions put what they hear.
        lost_s: How long a host may be silent.
        show: Takes (node, rank, stream, bytes), rank after rank, in order per file.
        begin: Where each log begins, as for `control.follow.Follower`.
        full: Whether `show` has as much as it can take for now.
    """

    def __init__(
        self,
        sessions: Mapping[str, HostSession],
        inbox: Inbox,
        lost_s: float,
        show: Callable[[str, int, str, bytes], None],
        start_at: Mapping[str, float],
        is_full: Callable[[], bool],
    ) -> None:
        super().__init__(sessions, inbox, lost_s)
        self._show, self._start_at, self._is_full = show, start_at, is_full
        self._logs: list[_LogFile] = []
        self._requests: dict[tuple[str, int], _LogFile] = {}
        self.problems: dict[str, Problem] = {}

    def run(self, node_plans: Sequence[NodePlan], ranks: Sequence[int]) -> None:
        """Show all that these ranks wrote until now; `problems` says whose could not be had.

        Raises:
            Interrupted: By a signal.
        """
        for node_plan in node_plans:
            node_ranks = [rank for rank in node_plan.ranks if rank in ranks]
            if not node_ranks:
                continue
            session = self.sessions.get(node_plan.node)
            if session is None:
                continue
            session.request("follow", {"order": encode(node_plan.order), "read_only": True})
            self._logs += [
                _LogFile(node_plan, *pair) for pair in itertools.product(node_ranks, STREAMS)
            ]
        self.wait()

    def pending(self) -> set[str]:
        """Return the nodes whose logs are not read to their end."""
        return {log.node_plan.node for log in self._logs}

    def tick(self) -> float:
        """Show what can be shown and request what comes next; of later files, the beginning."""
        while self._logs:
            log = self._logs[0]
            chunk, log.buffered = log.buffered, b""
            if chunk:
                self._show(log.node_plan.node, log.rank, log.stream, chunk)
            if not log.is_complete:
                if not log.is_requested and not self._is_full():
                    self._request(log)
                break
            del self._logs[0]
        for log in self._logs[1:READ_AHEAD]:
            if not log.is_started and not log.is_requested:
                self._request(log)
        return TICK_S

    def _request(self, log: _LogFile) -> None:
        start_at = {} if log.is_started else self._start_at
        source = {"source": rank_source(log.rank), "stream": log.stream, "wait": False}
        request = {
            **source,
            "attempt": log.node_plan.order.attempt,
            "offset": log.offset,
            "n": CHUNK,
        }
        request_id = self.sessions[log.node_plan.node].request("read", {**request, **start_at})
        self._requests[log.node_plan.node, request_id] = log
        log.is_requested = True

    def on_frame(self, name: str, frame: Frame) -> None:
        """Take a part of a log."""
        if frame.kind == "data":
            log = self._requests.pop((name, frame.data["id"]), None)
            if log is None:
                return
            log.buffered = frame.payload
            log.offset = frame.data["offset"] + len(frame.payload)
            log.is_started, log.is_requested, log.is_complete = True, False, bool(frame.data["eof"])
            if "error" in frame.data:
                message = f"the end of a log cannot be read: {frame.data['error']}"
                self.problems[name] = Problem(name, message)
        elif frame.kind == "refused":
            self.on_lost(name, str(frame.data["reason"]))

    def on_lost(self, name: str, reason: str) -> None:
        """Go on without a node."""
        self.problems[name] = Problem(name, reason)
        self._logs = [log for log in self._logs if log.node_plan.node != name]
