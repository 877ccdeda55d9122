"""The logs of a run as they are now, rank after rank: read ahead, shown in order."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runner.control.rpc.session import HostSession, Inbox
from runner.control.rpc.wait import wait_for
from runner.core.codec import encode
from runner.core.errors import Problem
from runner.core.planning.build_plan import NodePlan
from runner.core.protocol.events import RankStarted, parse
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import STREAMS, rank_source

READ_AHEAD = 32
"""So many files are asked for before it is their turn."""

CHUNK = 256 << 10


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


class RankDiscovery:
    """Which ranks each node of a run has, or had, where only its events tell."""

    def __init__(self, sessions: Mapping[str, HostSession], inbox: Inbox, lost_s: float) -> None:
        self._sessions, self._inbox, self._lost_s = sessions, inbox, lost_s
        self._event_bytes: dict[str, bytes] = {}
        self._pending: set[str] = set()

    def ranks_by_node(self, node_plans: Sequence[NodePlan]) -> dict[str, tuple[int, ...]]:
        """Return the ranks that were started on each node that answers.

        Raises:
            Interrupted: By a signal.
        """
        for node_plan in node_plans:
            if node_plan.node in self._sessions:
                session = self._sessions[node_plan.node]
                session.request("follow", {"order": encode(node_plan.order), "read_only": True})
                self._event_bytes[node_plan.node] = b""
                self._pending.add(node_plan.node)
                self._request(node_plan.node)
        wait_for(self._inbox, self._pending_sessions, self._lost_s, self._on_frame, self._on_lost)
        return {
            node_plan.node: self._started_ranks(node_plan)
            for node_plan in node_plans
            if node_plan.node in self._event_bytes
        }

    def _pending_sessions(self) -> dict[str, HostSession]:
        return {name: self._sessions[name] for name in self._pending}

    def _on_lost(self, name: str, _: str) -> None:
        self._pending.discard(name)

    def _request(self, name: str) -> None:
        source = {"source": "events", "stream": "", "attempt": 0, "wait": False}
        request = {**source, "offset": len(self._event_bytes[name]), "n": CHUNK}
        self._sessions[name].request("read", request)

    def _on_frame(self, name: str, frame: Frame) -> None:
        if frame.kind == "refused":
            self._pending.discard(name)
        elif frame.kind == "data" and name in self._pending:
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


class LogDump:
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
        self._sessions, self._inbox, self._lost_s = sessions, inbox, lost_s
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
            session = self._sessions.get(node_plan.node)
            if session is None:
                continue
            session.request("follow", {"order": encode(node_plan.order), "read_only": True})
            self._logs += [
                _LogFile(node_plan, *pair) for pair in itertools.product(node_ranks, STREAMS)
            ]
        wait_for(self._inbox, self._pending_sessions, self._lost_s, self._on_frame, self._on_lost)

    def _pending_sessions(self) -> dict[str, HostSession]:
        self._advance()
        return {log.node_plan.node: self._sessions[log.node_plan.node] for log in self._logs}

    def _advance(self) -> None:
        """Show what can be shown, and ask for what comes next; of the others the beginning."""
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

    def _request(self, log: _LogFile) -> None:
        start_at = {} if log.is_started else self._start_at
        source = {"source": rank_source(log.rank), "stream": log.stream, "wait": False}
        request = {
            **source,
            "attempt": log.node_plan.order.attempt,
            "offset": log.offset,
            "n": CHUNK,
        }
        request_id = self._sessions[log.node_plan.node].request("read", {**request, **start_at})
        self._requests[log.node_plan.node, request_id] = log
        log.is_requested = True

    def _on_frame(self, name: str, frame: Frame) -> None:
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
            self._on_lost(name, str(frame.data["reason"]))

    def _on_lost(self, name: str, message: str) -> None:
        self.problems[name] = Problem(name, message)
        self._logs = [log for log in self._logs if log.node_plan.node != name]
