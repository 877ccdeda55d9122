"""One command on every host, side by side, and what came of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.control.rpc.session import Inbox, Session
from runner.control.rpc.wait import listen
from runner.core.protocol.frames import Frame

LIMIT = 4 << 20
"""Bytes kept of what one host prints; the rest is dropped, and that is said."""

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
        self._give_up_at = time.monotonic() + timeout_s + MARGIN_S
        listen(self._inbox, self._waiting, self._lost_s, self._take, self._lose, self._interrupt)

    def _waiting(self) -> dict[str, Session]:
        """Return those where it has not ended; too late for them, none."""
        if time.monotonic() > self._give_up_at:
            for name in self._running():
                self._lose(name, "it did not say in time that the command has ended")
        return self._running()

    def _running(self) -> dict[str, Session]:
        return {n: each for n, each in self._sessions.items() if not self.answers[n].over}

    def _lose(self, name: str, why: str) -> None:
        answer = self.answers[name]
        answer.problem, answer.unproven = f"lost: {why}; the command may go on there", True
        self._show(name, "lost")

    def _interrupt(self, signum: int) -> None:
        """Have every host end it; a second time, wait for none of them."""
        patience_s = 0 if self.signal else KILL_S
        self._give_up_at = min(self._give_up_at, time.monotonic() + patience_s)
        self.signal = signum
        for session in self._running().values():
            session.request("kill")

    def _take(self, name: str, frame: Frame) -> None:
        answer = self.answers[name]
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
