"""Log dump: the logs of a run as they are now, shown node after node, rank after rank."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from runner.control.rpc.log_tail import STREAM_KINDS, LogTailer
from runner.control.rpc.session import HostSession, Inbox
from runner.control.rpc.wait import TICK_S, WaitLoop
from runner.core.errors import Problem
from runner.core.wire.codec import Frame, encode
from runner.core.wire.paths import source_rank
from runner.core.wire.plan import NodePlan


class LogDump(WaitLoop):
    """The logs of some ranks, each from its beginning or its last `tail` lines.

    `sink` takes (node, rank, stream, bytes), in order; `is_full` returns whether it can take no
    more for now. What other hosts send before their turn waits here, as much as they may send.
    """

    def __init__(
        self,
        sessions: Mapping[str, HostSession],
        inbox: Inbox,
        lost_s: float,
        sink: Callable[[str, int, str, bytes], None],
        tail: int | None,
        is_full: Callable[[], bool],
        show: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        super().__init__(sessions, inbox, lost_s, show)
        self._sink = sink
        self._tail = tail
        self._is_full = is_full
        self._tailers: dict[str, LogTailer] = {}  # in the order in which they are shown
        self._waiting: dict[str, deque[tuple[str, str, bytes]]] = {}
        self.problems: dict[str, Problem] = {}  # why the logs of a node are missing or incomplete

    def run(self, node_plans: Sequence[NodePlan], ranks: Sequence[int]) -> None:
        """Show all that these ranks have written until now; raise Interrupted by a signal."""
        for node_plan in node_plans:
            node_ranks = {*ranks} & {*(node_plan.ranks or ranks)}
            session = self.sessions.get(node_plan.node)
            if not node_ranks or session is None:
                continue
            waiting: deque[tuple[str, str, bytes]] = deque()
            keep = functools.partial(_keep, waiting)
            tailer = LogTailer(node_plan, keep, tail=self._tail, ranks=node_ranks, once=True)
            self._tailers[node_plan.node] = tailer
            self._waiting[node_plan.node] = waiting
            session.hold(is_held=True)
            session.request("follow", {"order": encode(node_plan.order), "read_only": True})
            tailer.start(session)
        self.wait()

    def _pending(self) -> list[str]:
        return list(self._tailers)

    def _owes_answer(self, name: str) -> bool:
        """Return whether it is its turn: others may have sent all that they may."""
        is_first = name == next(iter(self._tailers))
        return is_first and not (self.sessions[name].is_held or self._tailers[name].is_complete)

    def _tick(self) -> float:
        while self._tailers:
            name, tailer = next(iter(self._tailers.items()))
            is_full = self._is_full()
            self.sessions[name].hold(is_held=is_full)
            waiting = self._waiting[name]
            while waiting and not self._is_full():
                source, stream, data = waiting.popleft()
                self._sink(name, source_rank(source), stream, data)
            if waiting or not tailer.is_complete:
                break
            del self._tailers[name]
        return TICK_S

    def _on_frame(self, name: str, frame: Frame) -> bool:
        if frame.kind == "refused":
            self._on_lost(name, frame.data["reason"])
            return True
        if frame.kind not in STREAM_KINDS:
            return False
        if error := frame.data.get("error"):
            self.problems[name] = Problem(name, f"the end of a log cannot be read: {error}")
        for _ in self._tailers[name].on_frame(frame):
            pass
        return True

    def _on_lost(self, name: str, reason: str) -> None:
        self.problems[name] = Problem(name, reason)
        if tailer := self._tailers.get(name):
            tailer.is_complete = True  # what came is shown


def _keep(
    waiting: deque[tuple[str, str, bytes]], source: str, stream: str, _: int, data: bytes
) -> None:
    waiting.append((source, stream, data))
