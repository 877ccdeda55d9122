"""One command on every host, side by side, and what came of it."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from runner.control.session import Inbox, Session
from runner.core.wire import Frame

LIMIT = 4 << 20
"""Bytes kept of what one host prints; the rest is dropped, and that is said."""

DROPPED = b"\n[the rest of its output is dropped]\n"

PING_S = 2.0
MARGIN_S = 15.0
"""What a host may take beyond the command's own limit to end it."""


@dataclass
class Answer:
    """What a command did on one host.

    Attributes:
        node: Where.
        code: Its exit code, or minus the signal that ended it; None when that is not known.
        out: Its standard output.
        err: Its standard error.
        problem: What kept it from an end of its own, "" for nothing.
    """

    node: str
    code: int | None = None
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    problem: str = ""

    @property
    def over(self) -> bool:
        """Whether nothing more is to come."""
        return self.code is not None or bool(self.problem)


class Execution:
    """One command on its way through all hosts."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        inbox: Inbox,
        lost_s: float,
        show: Callable[[str, str], None],
    ) -> None:
        self._sessions, self._inbox, self._lost_s, self._show = sessions, inbox, lost_s, show
        self.answers = {name: Answer(name) for name in sessions}
        self.signal = 0

    def run(self, words: Sequence[str], timeout_s: float) -> None:
        """Return when it has ended everywhere, or once a signal came; `answers` has the rest."""
        for name, session in self._sessions.items():
            session.request("exec", {"argv": list(words), "limit_s": timeout_s})
            self._show(name, "running")
        deadline = time.monotonic() + timeout_s + MARGIN_S
        next_ping = 0.0
        while not all(answer.over for answer in self.answers.values()) and not self.signal:
            with contextlib.suppress(queue.Empty):
                self._take(*self._inbox.get(timeout=0.1))
            now = time.monotonic()
            if now >= next_ping:  # however much one of them prints
                next_ping = now + PING_S
                self._look_after(now, deadline)
        for answer in self.answers.values():
            if not answer.over:
                answer.problem = "interrupted"

    def _look_after(self, now: float, deadline: float) -> None:
        for name, session in self._sessions.items():
            answer = self.answers[name]
            silence = now - max(session.heard, session.sent)
            if answer.over:
                continue
            if silence > self._lost_s or now > deadline:
                answer.problem = f"lost: nothing was heard from it for {silence:.0f} s"
                self._show(name, "lost")
            else:
                session.request("ping")

    def _take(self, session: Session | None, frame: Frame) -> None:
        if session is None:
            self.signal = int(frame.data["signal"])
            return
        name = session.node.name
        answer = self.answers[name]
        if answer.over:
            return
        if frame.kind == "output":
            kept = answer.out if frame.data["stream"] == "out" else answer.err
            room = max(0, LIMIT - len(kept))
            kept += frame.payload[:room]
            if 0 < room < len(frame.payload):
                kept += DROPPED
        elif frame.kind == "exited":
            answer.code = int(frame.data["code"])
            if frame.data["survivors"]:
                pids = ", ".join(map(str, frame.data["survivors"]))
                answer.problem = f"cannot be killed: process {pids}"
            elif frame.data["late"]:
                answer.problem = "did not end in time and was killed"
            self._show(name, "ended")
        elif frame.kind == "refused":
            answer.problem = f"cannot be started: {frame.data['why']}"
            self._show(name, "failed")
        elif frame.kind == "closed":
            answer.problem = f"lost: the connection broke: {frame.data['reason']}"
            self._show(name, "lost")
