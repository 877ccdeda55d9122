"""One long request to every host, side by side, and what each answered."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from runner.control.rpc.session import Inbox, Session
from runner.control.rpc.wait import listen
from runner.core.errors import NotReady, Problem
from runner.core.protocol.frames import Frame

AGAIN = "the other hosts did as asked; say it again when this one is well"


class Asking:
    """A request to every host; each is told its own name as `node`.

    Args:
        sessions: The hosts, by node.
        inbox: Where all sessions put what they hear.
        lost_s: How long a host may be silent.
        show: Takes (node, state in a few words) whenever that changes.
    """

    def __init__(
        self,
        sessions: Mapping[str, Session],
        inbox: Inbox,
        lost_s: float,
        show: Callable[[str, str], None],
    ) -> None:
        self._sessions, self._inbox, self._lost_s, self._show = sessions, inbox, lost_s, show
        self._answers: dict[str, dict[str, Any]] = {}
        self._problems: dict[str, Problem] = {}
        self._kind = self._answer = ""
        self._limit_s = self._until = math.inf

    def run(self, kind: str, data: Mapping[str, Any], answer: str) -> dict[str, dict[str, Any]]:
        """Send a request of `kind`; return what came as `answer`, by node.

        Raises:
            NotReady: With the problem of every host that did not answer; the others did as asked.
            Interrupted: By a signal.
        """
        answers, problems = self.some(kind, data, answer)
        if problems:
            raise NotReady(list(problems.values()))
        return answers

    def some(
        self, kind: str, data: Mapping[str, Any], answer: str, limit_s: float = math.inf
    ) -> tuple[dict[str, dict[str, Any]], dict[str, Problem]]:
        """Send a request of `kind`; return what came as `answer`, and what kept the others.

        A payload stands in the answer as `payload`. Nobody is waited for longer than `limit_s`.

        Raises:
            Interrupted: By a signal.
        """
        self._kind, self._answer = kind, answer
        self._limit_s, self._until = limit_s, time.monotonic() + limit_s
        for name, session in self._sessions.items():
            session.request(kind, {**data, "node": name})
            self._show(name, "working")
        listen(self._inbox, self._waiting, self._lost_s, self._take, self._lose)
        return self._answers, self._problems

    def _waiting(self) -> dict[str, Session]:
        done = self._answers.keys() | self._problems.keys()
        waiting = {name: each for name, each in self._sessions.items() if name not in done}
        if time.monotonic() < self._until:
            return waiting
        for name in waiting:
            self._lose(name, f"did not {self._kind} within {self._limit_s:g} s")
        return {}

    def _take(self, name: str, frame: Frame) -> None:
        if frame.kind == self._answer:
            self._answers[name] = {**frame.data, "payload": frame.payload}
            self._show(name, "done")
        elif frame.kind == "refused":
            self._lose(name, f"could not {self._kind}: {frame.data['why']}")

    def _lose(self, name: str, what: str) -> None:
        self._problems[name] = Problem(name, what, AGAIN)
        self._show(name, "failed")
