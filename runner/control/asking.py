"""One long request to every host, side by side, and what each answered."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Mapping
from typing import Any

from runner.control.session import Inbox, Session
from runner.core.errors import Interrupted, NotReady, Problem
from runner.core.wire import Frame

PING_S = 2.0
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

    def run(self, kind: str, data: Mapping[str, Any], answer: str) -> dict[str, dict[str, Any]]:
        """Send a request of `kind`; return what came as `answer`, by node.

        Raises:
            NotReady: With the problem of every host that did not answer; the others did as asked.
            Interrupted: By a signal.
        """
        self._kind, self._answer = kind, answer
        for name, session in self._sessions.items():
            session.request(kind, {**data, "node": name})
            self._show(name, "working")
        next_ping = 0.0
        while self._waiting():
            with contextlib.suppress(queue.Empty):
                self._take(*self._inbox.get(timeout=0.1))
            now = time.monotonic()
            if now >= next_ping:
                next_ping = now + PING_S
                self._look_after()
        if self._problems:
            raise NotReady(list(self._problems.values()))
        return self._answers

    def _waiting(self) -> list[str]:
        done = self._answers.keys() | self._problems.keys()
        return [name for name in self._sessions if name not in done]

    def _take(self, session: Session | None, frame: Frame) -> None:
        if session is None:
            raise Interrupted(128 + int(frame.data["signal"]))
        name = session.node.name
        if name not in self._waiting():
            return
        if frame.kind == self._answer:
            self._answers[name] = frame.data
            self._show(name, "done")
        elif frame.kind == "refused":
            self._fail(name, f"could not {self._kind}: {frame.data['why']}")
        elif frame.kind == "closed":
            self._fail(name, f"the connection to it broke: {frame.data['reason']}")

    def _look_after(self) -> None:
        for name in self._waiting():
            session = self._sessions[name]
            if session.silence > self._lost_s:
                self._fail(name, f"nothing was heard from it for {session.silence:.0f} s")
            else:
                session.request("ping")

    def _fail(self, name: str, what: str) -> None:
        self._problems[name] = Problem(name, what, AGAIN)
        self._show(name, "failed")
