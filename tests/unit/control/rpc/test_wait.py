"""The wait loop: deadlines, silence, broken connections and signals; and the broadcast on it."""

from __future__ import annotations

import copy
import math
import time
from typing import Any, cast

import pytest

from runner.control.rpc import wait
from runner.control.rpc.session import HostSession, Inbox
from runner.control.rpc.wait import Broadcast, WaitLoop
from runner.core.errors import Interrupted
from runner.core.spec import Node
from runner.core.wire.codec import Frame, FrameError


class FakeSession:
    """A session whose host answers some kinds of requests, at once, and the others never."""

    def __init__(self, name: str, inbox: Inbox | None = None, **answers: str) -> None:
        self.node = Node(name, name)
        self.closed = self.closed_locally = False
        self.handshake_done = True
        self.idle_s = self.last_sent = 0.0
        self.last_heard = time.monotonic()
        self.requests: list[str] = []
        self.sent: list[dict[str, Any]] = []
        self.held: list[bool] = []
        self.rejected = ""
        self.abandoned: set[int] = set()
        self._inbox = inbox
        self._answers = answers

    def request(self, kind: str, data: dict[str, Any] | None = None, payload: bytes = b"") -> int:
        assert not payload
        self.requests.append(kind)
        self.sent.append(copy.deepcopy(data or {}))
        if self._inbox and kind in self._answers:
            told = {"node": self.sent[-1].get("node"), "disk_wait_s": 0.0}
            self._inbox.put((cast("HostSession", self), Frame(self._answers[kind], told)))
        return len(self.requests)

    def hold(self, *, is_held: bool) -> None:
        self.held.append(is_held)

    def on_taken(self, frame: Frame) -> None:
        """Nothing here counts bytes."""

    def reject(self, error: Exception) -> None:
        self.closed = True
        self.rejected = str(error)

    def close(self) -> None:
        self.closed = self.closed_locally = True


class Recorder(WaitLoop):
    """Waits for a frame of each host, or for what ends the wait for it."""

    def __init__(self, *names: str) -> None:
        inbox = Inbox()
        self.hosts = {name: FakeSession(name, inbox) for name in names}
        super().__init__(cast("dict[str, HostSession]", self.hosts), inbox, 5.0)
        self.seen: dict[str, str] = {}
        self.deadlines: dict[str, float] = {}

    def put(self, name: str, kind: str, **data: object) -> None:
        self.inbox.put((self.sessions[name], Frame(kind, data)))

    def _pending(self) -> set[str]:
        return self.sessions.keys() - self.seen.keys()

    def _deadline_of(self, name: str) -> float:
        return self.deadlines.get(name, math.inf)

    def _on_frame(self, name: str, frame: Frame) -> bool:
        if frame.kind == "odd":
            raise FrameError("an odd frame")
        self.seen[name] = {"done": "done", "refused": "refused"}[frame.kind]
        return True

    def _on_lost(self, name: str, reason: str) -> None:
        self.seen[name] = reason


@pytest.mark.promise(12)
def test_each_host_ends_in_its_own_way() -> None:
    """Answers, also odd ones, broken connections, deadlines and silence; all are pinged."""
    loop = Recorder("a", "b", "c", "d", "e", "f")
    loop.put("a", "done")
    loop.put("b", "closed", reason="reset by peer")
    loop.deadlines["c"] = 0.0
    loop.hosts["d"].idle_s = 6.0
    loop.hosts["e"].closed = True
    loop.put("f", "odd")
    loop.wait()
    assert loop.seen == {
        "a": "done",
        "b": "the connection to it broke: reset by peer",
        "c": wait.NO_ANSWER,
        "d": "nothing was heard from it for 6 s",
        "e": "the connection to it is gone",
        "f": "the connection to it is gone",
    }
    assert loop.hosts["f"].rejected == "an odd frame"
    assert set(loop.hosts["a"].requests) == {"ping"}


def test_fault_of_ours_is_no_fault_of_a_host() -> None:
    """It is raised, as a bug that is to be found."""
    loop = Recorder("a")
    loop.put("a", "unforeseen")

    with pytest.raises(KeyError):
        loop.wait()
    assert not loop.hosts["a"].rejected


def test_a_signal_interrupts() -> None:
    """A connection that was opened for an ended attempt is closed."""
    loop = Recorder("a")
    stray = FakeSession("b", loop.inbox)
    loop.inbox.put((cast("HostSession", stray), Frame("reconnected", {})))
    loop.inbox.put((None, Frame("signal", {"signal": 15})))
    with pytest.raises(Interrupted) as caught:
        loop.wait()
    assert caught.value.exit_code == 143
    assert stray.closed


@pytest.mark.promise(4, 12)
def test_answers_to_pings_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk is shown and waited for, longer if the host reports progress, not for ever."""
    monkeypatch.setattr(wait, "SLOW_S", 0.05)
    monkeypatch.setattr(wait, "ANSWER_TIMEOUT_S", 0.3)
    monkeypatch.setattr(wait, "WORK_TIMEOUT_S", 0.9)
    inbox = Inbox()
    hosts = {
        "mute": FakeSession("mute", inbox, ping="pong"),
        "liar": FakeSession("liar", inbox, ping="hello"),
        "good": FakeSession("good", inbox, ping="pong", clean="cleaned"),
        "busy": FakeSession("busy", inbox, ping="in_progress"),
    }
    states: list[tuple[str, str]] = []
    asking = Broadcast(
        cast("dict[str, HostSession]", hosts), inbox, 60.0, lambda *state: states.append(state)
    )
    asking.ping_interval_s = 0.1
    cleaned, problems = asking.collect("clean", {}, "cleaned")

    assert [*cleaned] == ["good"]
    assert {name: each.message for name, each in problems.items()} == dict.fromkeys(
        ("mute", "busy", "liar"), wait.NO_ANSWER
    )
    assert ("mute", "no answer for 0 s; its disk may be slow") in states
    assert [host.closed for host in hosts.values()] == [True, True, False, True]
    assert [name for name, state in states if state == "failed"][-1] == "busy"


@pytest.mark.promise(4)
def test_who_is_late_with_a_note_keeps_its_connection() -> None:
    """It answers pings and all else; what it says later is dropped."""
    inbox = Inbox()
    late = FakeSession("late", inbox, ping="pong")
    asking = Broadcast({"late": cast("HostSession", late)}, inbox, 60.0)

    answers, problems = asking.collect("sample", {}, "sampled", timeout_s=0.05)

    assert (answers, problems["late"].message) == ({}, "did not sample within 0.05 s")
    assert (late.closed, late.abandoned) == (False, {1})
