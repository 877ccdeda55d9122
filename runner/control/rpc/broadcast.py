"""Broadcast: one request to every host at once, and the reply of each."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from runner.control.rpc.wait import WaitLoop
from runner.core.errors import NotReady, Problem
from runner.core.protocol.frames import Frame

RETRY_HINT = "the other hosts did as asked; repeat the command when this one is well"


class Broadcast(WaitLoop):
    """A request to every host, which carries the host's own name as `node`."""

    def all(self, kind: str, data: Mapping[str, Any], reply_kind: str) -> dict[str, dict[str, Any]]:
        """Return the replies of kind `reply_kind`, by node; raise NotReady if one is missing."""
        replies, problems = self.collect(kind, data, reply_kind)
        if problems:
            raise NotReady(list(problems.values()))
        return replies

    def collect(
        self, kind: str, data: Mapping[str, Any], reply_kind: str, timeout_s: float = math.inf
    ) -> tuple[dict[str, dict[str, Any]], dict[str, Problem]]:
        """Return the replies to a request of `kind`, and the problem of every other host.

        The payload of a reply is its entry `payload`. A host has `timeout_s` to reply.
        """
        self._replies: dict[str, dict[str, Any]] = {}
        self._problems: dict[str, Problem] = {}
        self._action, self._reply_kind = kind.replace("_", " "), reply_kind
        self._timeout_s, self._deadline = timeout_s, time.monotonic() + timeout_s
        for name, session in self.sessions.items():
            session.request(kind, {**data, "node": name})
            self._show(name, "working")
        self.wait()
        return self._replies, self._problems

    def _pending(self) -> set[str]:
        return self.sessions.keys() - self._replies.keys() - self._problems.keys()

    def _on_frame(self, name: str, frame: Frame) -> None:
        if frame.kind == self._reply_kind:
            self._replies[name] = {**frame.data, "payload": frame.payload}
            self._show(name, "done")
        elif frame.kind == "refused":
            self._on_lost(name, f"could not {self._action}: {frame.data['reason']}")

    def _on_late(self, name: str) -> None:
        self._on_lost(name, f"did not {self._action} within {self._timeout_s:g} s")

    def _on_lost(self, name: str, reason: str) -> None:
        self._problems[name] = Problem(name, reason, RETRY_HINT)
        self._show(name, "failed")
