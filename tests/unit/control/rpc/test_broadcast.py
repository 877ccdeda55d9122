"""A request to many hosts, one of which answers pings only."""

from __future__ import annotations

import queue
from typing import Any, cast

from runner.control.rpc.broadcast import Broadcast
from runner.control.rpc.session import HostSession, Inbox
from runner.core.model.spec import Node
from runner.core.protocol.frames import Frame


class Wire:
    """A session whose host answers some kinds of requests."""

    idle_s, closed, closed_locally = 0.0, False, False

    def __init__(self, name: str, inbox: Inbox, answers: dict[str, str]) -> None:
        self.node = Node(name, name)
        self._inbox, self._answers = inbox, answers

    def request(self, kind: str, data: dict[str, Any] | None = None) -> None:
        """Answer at once, or never."""
        if kind in self._answers:
            told = {"node": (data or {}).get("node")}
            self._inbox.put((cast("HostSession", self), Frame(self._answers[kind], told)))


def test_nobody_is_waited_for_longer_than_the_limit() -> None:
    """However lively it is otherwise; what the others said counts."""
    inbox: Inbox = queue.SimpleQueue()
    both = {"ping": "pong", "listen": "listening"}
    hosts = {"a": Wire("a", inbox, both), "b": Wire("b", inbox, {"ping": "pong"})}
    states: list[tuple[str, str]] = []
    asking = Broadcast(
        cast("dict[str, HostSession]", hosts), inbox, 60.0, lambda *state: states.append(state)
    )
    told, problems = asking.collect("listen", {}, "listening", timeout_s=0.2)
    assert {name: each["node"] for name, each in told.items()} == {"a": "a"}
    assert {name: each.message for name, each in problems.items()} == {
        "b": "did not listen within 0.2 s"
    }
    assert states[-2:] == [("a", "done"), ("b", "failed")]
