"""The logs of a run as they are now, rank after rank: read ahead, shown in order."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runner.control.rpc.session import Inbox, Session
from runner.control.rpc.wait import listen
from runner.core.codec import encode
from runner.core.errors import Problem
from runner.core.planning.build_plan import NodePlan
from runner.core.protocol.events import RankStarted, parse
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import STREAMS, rank_source

AHEAD = 32
"""So many files are asked for before it is their turn."""

CHUNK = 256 << 10


@dataclass
class _Log:
    """One file: who has it, and what came of it so far."""

    share: NodePlan
    rank: int
    stream: str
    waiting: bytes = b""
    offset: int = 0
    begun: bool = False
    asked: bool = False
    done: bool = False


class Starts:
    """Which ranks each node of a run has, or had, where only its events tell."""

    def __init__(self, sessions: Mapping[str, Session], inbox: Inbox, lost_s: float) -> None:
        self._sessions, self._inbox, self._lost_s = sessions, inbox, lost_s
        self._files: dict[str, bytes] = {}
        self._open: set[str] = set()

    def of(self, shares: Sequence[NodePlan]) -> dict[str, tuple[int, ...]]:
        """Return the ranks that were started on each node that answers.

        Raises:
            Interrupted: By a signal.
        """
        for share in shares:
            if share.node in self._sessions:
                session = self._sessions[share.node]
                session.request("adopt", {"order": encode(share.order), "quiet": True})
                self._files[share.node] = b""
                self._open.add(share.node)
                self._ask(share.node)
        listen(self._inbox, self._waiting, self._lost_s, self._take, self._lose)
        return {share.node: self._ranks(share) for share in shares if share.node in self._files}

    def _waiting(self) -> dict[str, Session]:
        return {name: self._sessions[name] for name in self._open}

    def _lose(self, name: str, _: str) -> None:
        self._open.discard(name)

    def _ask(self, name: str) -> None:
        where = {"source": "events", "stream": "", "attempt": 0, "wait": False}
        read = {**where, "offset": len(self._files[name]), "n": CHUNK}
        self._sessions[name].request("read", read)

    def _take(self, name: str, frame: Frame) -> None:
        if frame.kind == "refused":
            self._open.discard(name)
        elif frame.kind == "data" and name in self._open:
            self._files[name] += frame.payload
            if frame.data["eof"]:
                self._open.discard(name)
            else:
                self._ask(name)

    def _ranks(self, share: NodePlan) -> tuple[int, ...]:
        ranks = set()
        for line in self._files[share.node].decode(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                event = parse(line)
                mine = event.attempt == share.order.attempt
                if mine and isinstance(event.body, RankStarted):
                    ranks.add(event.body.rank)
        return tuple(sorted(ranks))


class LogReading:
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
        sessions: Mapping[str, Session],
        inbox: Inbox,
        lost_s: float,
        show: Callable[[str, int, str, bytes], None],
        begin: Mapping[str, float],
        full: Callable[[], bool],
    ) -> None:
        self._sessions, self._inbox, self._lost_s = sessions, inbox, lost_s
        self._show, self._begin, self._full = show, begin, full
        self._logs: list[_Log] = []
        self._asked: dict[tuple[str, int], _Log] = {}
        self.problems: dict[str, Problem] = {}

    def run(self, shares: Sequence[NodePlan], ranks: Sequence[int]) -> None:
        """Show all that these ranks wrote until now; `problems` says whose could not be had.

        Raises:
            Interrupted: By a signal.
        """
        for share in shares:
            mine = [rank for rank in share.ranks if rank in ranks]
            if not mine:
                continue
            session = self._sessions.get(share.node)
            if session is None:
                continue
            session.request("adopt", {"order": encode(share.order), "quiet": True})
            self._logs += [_Log(share, *each) for each in itertools.product(mine, STREAMS)]
        listen(self._inbox, self._waiting, self._lost_s, self._take, self._lose)

    def _waiting(self) -> dict[str, Session]:
        self._go_on()
        return {log.share.node: self._sessions[log.share.node] for log in self._logs}

    def _go_on(self) -> None:
        """Show what can be shown, and ask for what comes next; of the others the beginning."""
        while self._logs:
            log = self._logs[0]
            piece, log.waiting = log.waiting, b""
            if piece:
                self._show(log.share.node, log.rank, log.stream, piece)
            if not log.done:
                if not log.asked and not self._full():
                    self._ask(log)
                break
            del self._logs[0]
        for log in self._logs[1:AHEAD]:
            if not log.begun and not log.asked:
                self._ask(log)

    def _ask(self, log: _Log) -> None:
        begin = {} if log.begun else self._begin
        where = {"source": rank_source(log.rank), "stream": log.stream, "wait": False}
        words = {**where, "attempt": log.share.order.attempt, "offset": log.offset, "n": CHUNK}
        number = self._sessions[log.share.node].request("read", {**words, **begin})
        self._asked[log.share.node, number] = log
        log.asked = True

    def _take(self, name: str, frame: Frame) -> None:
        if frame.kind == "data":
            log = self._asked.pop((name, frame.data["id"]), None)
            if log is None:
                return
            log.waiting = frame.payload
            log.offset = frame.data["offset"] + len(frame.payload)
            log.begun, log.asked, log.done = True, False, bool(frame.data["eof"])
            if "error" in frame.data:
                what = f"the end of a log cannot be read: {frame.data['error']}"
                self.problems[name] = Problem(name, what)
        elif frame.kind == "refused":
            self._lose(name, str(frame.data["why"]))

    def _lose(self, name: str, what: str) -> None:
        self.problems[name] = Problem(name, what)
        self._logs = [log for log in self._logs if log.share.node != name]
