"""The wait loop: deadlines, silence, broken connections and signals; and the broadcast on it."""

from __future__ import annotations

import math
import queue
from typing import Any, cast

import pytest

from runner.control.rpc.session import HostSession, Inbox
from runner.control.rpc.wait import Broadcast, WaitLoop
from runner.core.errors import Interrupted
from runner.core.model.spec import Node
from runner.core.protocol.frames import Frame


class FakeSession:
    """A session that counts requests."""

    def __init__(self, name: str) -> None:
        self.node = Node(name, name)
        self.closed = self.closed_locally = False
        self.idle_s = 0.0
        self.requests: list[str] = []

    def request(self, kind: str) -> None:
        """Take a request."""
        self.requests.append(kind)

    def close(self) -> None:
        """End it."""
        self.closed = self.closed_locally = True


class Recorder(WaitLoop):
    """Waits for a frame of each host, or for what ends the wait for it."""

    def __init__(self, *names: str) -> None:
        self.hosts = {name: FakeSession(name) for name in names}
        inbox: Inbox = queue.SimpleQueue()
        super().__init__(cast("dict[str, HostSession]", self.hosts), inbox, 5.0)
        self.seen: dict[str, str] = {}
        self.deadlines: dict[str, float] = {}

    def put(self, name: str, kind: str, **data: object) -> None:
        """Receive a frame of a host."""
        self.inbox.put((self.sessions[name], Frame(kind, data)))

    def _pending(self) -> set[str]:
        return self.sessions.keys() - self.seen.keys()

    def _deadline_of(self, name: str) -> float:
        return self.deadlines.get(name, math.inf)

    def _on_frame(self, name: str, frame: Frame) -> None:
        self.seen[name] = frame.kind

    def _on_lost(self, name: str, reason: str) -> None:
        self.seen[name] = reason


def test_each_host_ends_in_its_own_way() -> None:
    """Answers, broken connections, deadlines and silence; everyone is pinged meanwhile."""
    loop = Recorder("a", "b", "c", "d", "e")
    loop.put("a", "done")
    loop.put("b", "closed", reason="reset by peer")
    loop.deadlines["c"] = 0.0
    loop.hosts["d"].idle_s = 6.0
    loop.hosts["e"].closed = True
    loop.wait()
    assert loop.seen == {
        "a": "done",
        "b": "the connection to it broke: reset by peer",
        "c": "it did not answer in time",
        "d": "nothing was heard from it for 6 s",
        "e": "the connection to it is gone",
    }
    assert set(loop.hosts["a"].requests) == {"ping"}


def test_a_signal_interrupts() -> None:
    """Other messages of this machine do not; a connection for an ended attempt is closed."""
    loop = Recorder("a")
    stray = FakeSession("b")
    loop.inbox.put((None, Frame("prompt_answer", {})))
    loop.inbox.put((cast("HostSession", stray), Frame("reconnected", {})))
    loop.inbox.put((None, Frame("signal", {"signal": 15})))
    with pytest.raises(Interrupted) as caught:
        loop.wait()
    assert caught.value.exit_code == 143
    assert stray.closed


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
