"""One long request to every host, side by side, and what each answered."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from runner.control.rpc.session import HostSession, Inbox
from runner.control.rpc.wait import wait_for
from runner.core.errors import NotReady, Problem
from runner.core.protocol.frames import Frame

RETRY_HINT = "the other hosts did as asked; say it again when this one is well"


class Broadcast:
    """A request to every host; each is told its own name as `node`.

    Args:
        sessions: The hosts, by node.
        inbox: Where all sessions put what they hear.
        lost_s: How long a host may be silent.
        show: Takes (node, state in a few words) whenever that changes.
    """

    def __init__(
        self,
        sessions: Mapping[str, HostSession],
        inbox: Inbox,
        lost_s: float,
        show: Callable[[str, str], None],
    ) -> None:
        self._sessions, self._inbox, self._lost_s, self._show = sessions, inbox, lost_s, show
        self._replies: dict[str, dict[str, Any]] = {}
        self._problems: dict[str, Problem] = {}
        self._action = self._reply_kind = ""
        self._timeout_s = self._deadline = math.inf

    def all(self, kind: str, data: Mapping[str, Any], reply_kind: str) -> dict[str, dict[str, Any]]:
        """Send a request of `kind`; return what came as `reply_kind`, by node.

        Raises:
            NotReady: With the problem of every host that did not answer; the others did as asked.
            Interrupted: By a signal.
        """
        replies, problems = self.collect(kind, data, reply_kind)
        if problems:
            raise NotReady(list(problems.values()))
        return replies

    def collect(
        self, kind: str, data: Mapping[str, Any], reply_kind: str, timeout_s: float = math.inf
    ) -> tuple[dict[str, dict[str, Any]], dict[str, Problem]]:
        """Send a request of `kind`; return what came as `reply_kind`, and what kept the others.

        A payload stands in the answer as `payload`. Nobody is waited for longer than `timeout_s`.

        Raises:
            Interrupted: By a signal.
        """
        self._action, self._reply_kind = kind.replace("_", " "), reply_kind
        self._timeout_s, self._deadline = timeout_s, time.monotonic() + timeout_s
        for name, session in self._sessions.items():
            session.request(kind, {**data, "node": name})
            self._show(name, "working")
        wait_for(self._inbox, self._pending, self._lost_s, self._on_frame, self._fail)
        return self._replies, self._problems

    def _pending(self) -> dict[str, HostSession]:
        finished = self._replies.keys() | self._problems.keys()
        pending = {
            name: session for name, session in self._sessions.items() if name not in finished
        }
        if time.monotonic() < self._deadline:
            return pending
        for name in pending:
            self._fail(name, f"did not {self._action} within {self._timeout_s:g} s")
        return {}

    def _on_frame(self, name: str, frame: Frame) -> None:
        if frame.kind == self._reply_kind:
            self._replies[name] = {**frame.data, "payload": frame.payload}
            self._show(name, "done")
        elif frame.kind == "refused":
            self._fail(name, f"could not {self._action}: {frame.data['reason']}")

    def _fail(self, name: str, message: str) -> None:
        self._problems[name] = Problem(name, message, RETRY_HINT)
        self._show(name, "failed")
