"""One command on every host, side by side, and what came of it."""

from __future__ import annotations

import contextlib
import queue
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.control.session import Inbox, Session
from runner.core.wire import Frame

LIMIT = 4 << 20
"""Bytes kept of what one host prints; the rest is dropped, and that is said."""

PING_S = 2.0
MARGIN_S = 15.0
"""What a host may take beyond the command's own limit to end it."""

KILL_S = 12.0
"""How long hosts may take to end it after Ctrl-C (`host.ending.KILL_S`, and a margin)."""


@dataclass
class Answer:
    """What a command did on one host.

    Attributes:
        node: Where.
        code: Its exit code, or minus the signal that ended it; None when that is not known.
        out: Its standard output.
        err: Its standard error.
        problem: What kept it from an end of its own, "" for nothing.
        dropped: Whether it printed more than is kept.
        unproven: Whether something of it may be left.
    """

    node: str
    code: int | None = None
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    problem: str = ""
    dropped: bool = False
    unproven: bool = False

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
        self._give_up_at = float("inf")

    def run(self, words: Sequence[str], timeout_s: float) -> None:
        """Return when it has ended everywhere, a signal or not; `answers` says how."""
        for name, session in self._sessions.items():
            session.request("exec", {"argv": list(words), "limit_s": timeout_s})
            self._show(name, "running")
        deadline = time.monotonic() + timeout_s + MARGIN_S
        next_ping = 0.0
        while not all(answer.over for answer in self.answers.values()):
            with contextlib.suppress(queue.Empty):
                self._take(*self._inbox.get(timeout=0.1))
            now = time.monotonic()
            if now >= next_ping:  # however much one of them prints
                next_ping = now + PING_S
                self._look_after(now, min(deadline, self._give_up_at))

    def _look_after(self, now: float, deadline: float) -> None:
        for name, session in self._sessions.items():
            answer = self.answers[name]
            if answer.over:
                continue
            if session.silence > self._lost_s:
                self._lose(answer, f"nothing was heard from it for {session.silence:.0f} s")
            elif now > deadline:
                self._lose(answer, "it did not say in time that the command has ended")
            else:
                session.request("ping")

    def _lose(self, answer: Answer, why: str) -> None:
        answer.problem, answer.unproven = f"lost: {why}; the command may go on there", True
        self._show(answer.node, "lost")

    def _interrupt(self, signum: int) -> None:
        """Have every host end it; a second time, wait for none of them."""
        self._give_up_at = time.monotonic() + (0 if self.signal else KILL_S)
        self.signal = signum
        for name, session in self._sessions.items():
            if not self.answers[name].over:
                session.request("kill")

    def _take(self, session: Session | None, frame: Frame) -> None:
        if session is None:
            self._interrupt(int(frame.data["signal"]))
            return
        name = session.node.name
        answer = self.answers[name]
        if answer.over:
            return
        if frame.kind == "output":
            kept = answer.out if frame.data["stream"] == "out" else answer.err
            room = max(0, LIMIT - len(kept))
            kept += frame.payload[:room]
            answer.dropped |= room < len(frame.payload)
        elif frame.kind == "exited":
            self._ended(answer, frame.data)
            self._show(name, "ended")
        elif frame.kind == "refused":
            answer.problem = f"cannot be started: {frame.data['why']}"
            self._show(name, "failed")
        elif frame.kind == "closed":
            self._lose(answer, f"the connection broke: {frame.data['reason']}")

    def _ended(self, answer: Answer, told: Mapping[str, Any]) -> None:
        answer.code = told.get("code")
        if survivors := told.get("survivors"):
            answer.unproven = True
            answer.problem = f"cannot be killed: process {', '.join(map(str, survivors))}"
        elif "error" in told:
            answer.unproven = answer.code is None and "cannot start" not in told["error"]
            answer.problem = str(told["error"])
        elif told["late"]:
            answer.problem = "did not end in time and was killed"
        elif self.signal and answer.code == -signal.SIGKILL:
            answer.problem = "interrupted"
