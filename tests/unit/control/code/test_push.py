"""Push of one release to many hosts, with real agents and simulated connections."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from runner.control.code import push as code_push
from runner.control.code.push import CodePush
from runner.control.rpc import session
from runner.control.rpc.session import HostSession, Inbox
from runner.core.errors import NotReady
from runner.core.replies import checked_reply
from runner.core.spec import Deploy, Node
from runner.core.wire.codec import Frame, FrameDecoder
from tests.golden.builders import spec
from tests.unit.release_builders import InMemory, Made, PushTaker, is_intact, release, store


class Host(HostSession):
    """A host with a store of its own; it takes a frame whenever the test lets it.

    Attributes:
        pieces: The pieces it was sent.
        most: The most that ever waited to be sent to it.
        deaf: It takes no pieces, but answers.
        breaks: The connection breaks at the first frame of that kind.
        asks_for: The files that it asks for in place of those that it lacks.
        asks_again: It does so once more, having been sent all.
    """

    def __init__(self, name: str, workdir: Path, inbox: Inbox) -> None:
        self.closed_locally = False
        self._closed = threading.Event()
        self.node = Node(name, "10.0.0.1")
        self.workdir = workdir
        self.last_heard = self.last_sent = time.monotonic()
        self.unsent = self.most = 0
        self.asked = 0
        self.pieces: list[bytes] = []
        self.deaf = False
        self.breaks = ""
        self.asks_for: list[int] | None = None
        self.asks_again = False
        self._inbox = inbox
        self._coming: deque[tuple[Frame, int]] = deque()
        self._end = PushTaker(workdir, self._reply)

    def close(self, **_: bool) -> None:
        self._closed.set()

    def request(self, kind: str, data: dict[str, Any] | None = None, payload: bytes = b"") -> int:
        assert not self.closed, "nobody speaks into a wire that has ended"
        self.asked += 1
        self._coming.append((Frame(kind, {"id": self.asked, **(data or {})}, payload), 0))
        return self.asked

    def send(self, *parts: bytes) -> None:
        (frame,) = FrameDecoder().feed(b"".join(parts))
        payload = parts[-1]
        if frame.kind != "chunk":
            self._coming.append((frame, 0))
            return
        self.pieces.append(frame.payload)
        self.unsent += len(payload)
        self.most = max(self.most, self.unsent)
        self._coming.append((frame, len(payload)))

    def take(self) -> None:
        if not self._coming or (self.deaf and self._coming[0][0].kind == "chunk"):
            return
        frame, size = self._coming.popleft()
        self.unsent -= size
        if frame.kind == self.breaks:
            self._inbox.put((self, Frame("closed", {"reason": "reset by peer"})))
            self._coming.clear()
            self.close()
            return
        here = os.uname_result(("Linux", self.node.name, "", "", ""))
        try:
            with patch.object(os, "uname", lambda: here):
                self._answer(frame)
        except (OSError, ValueError, RuntimeError) as error:
            self._inbox.put((self, Frame("refused", {"id": 0, "reason": str(error)})))

    def reject(self, error: Exception) -> None:
        self.close()
        self._inbox.put((self, Frame("closed", {"reason": str(error)})))

    def _answer(self, frame: Frame) -> None:
        if frame.kind == "finish" and self.asks_again:
            self._reply("missing", {"id": 0, "missing": [0]}, b"")
        elif frame.kind != "ping":
            self._end.take(frame)

    def has(self, made: Made) -> bool:
        return is_intact(self.workdir, made)

    def _reply(self, kind: str, data: dict[str, Any], _: bytes) -> None:
        if kind == "missing" and self.asks_for is not None:
            data = {**data, "missing": self.asks_for}
        self._inbox.put((self, checked_reply(Frame(kind, data))))


class Turns(Inbox):
    """An inbox: whoever looks into it lets every host take a frame first, and never waits."""

    def __init__(self) -> None:
        super().__init__()
        self.hosts: list[Host] = []
        self.looks = 0

    def get(self, *_: Any, **__: Any) -> Any:
        self.looks += 1
        assert self.looks < 5000, "this never ends"
        for host in self.hosts:
            host.take()
        return self._frames.get_nowait()


class Push:
    def __init__(self, folder: Path, made: Made) -> None:
        self.folder = folder
        self.inbox = Turns()
        self.release = InMemory(made)

    def host(self, name: str, disk: str = "") -> Host:
        host = Host(name, self.folder / (disk or name), self.inbox)
        self.inbox.hosts.append(host)
        return host

    def run(self) -> CodePush:
        hosts = {host.node.name: host for host in self.inbox.hosts}
        nodes = [host.node for host in hosts.values()]
        asked = spec(*nodes, deploy=Deploy(enabled=True), lost_s=15.0)
        push = CodePush(asked, self.release, hosts, hosts, self.inbox, lambda *_: None)
        push.run()
        return push

    def problems(self) -> list[str]:
        with pytest.raises(NotReady) as caught:
            self.run()
        return [f"{each.subject}: {each.message}" for each in caught.value.problems]


TREE = release({"a": b"one" * 50, "b": b"two" * 50, "d/c": b"three" * 50, "empty": b""})


@pytest.fixture
def push(tmp_path: Path) -> Push:
    return Push(tmp_path, TREE)


def test_hosts_are_sent_what_they_lack_and_files_are_read_once(push: Push) -> None:
    """A second push costs what changed; files are read once for hosts that lack the same."""
    full, some, none, other = (push.host(name) for name in ("full", "some", "none", "other"))
    store(full.workdir, TREE)
    store(some.workdir, release({"old": b"two" * 50, "empty": b""}))

    receivers = push.run().targets

    assert all(host.has(TREE) for host in (full, some, none, other))
    queued = {name: each.queued for name, each in receivers.items()}
    assert queued == {"full": 0, "some": 400, "none": 550, "other": 550}
    assert (receivers["full"].is_new, full.pieces) == (False, [])
    assert push.release.reads == {"a": 2, "b": 1, "d/c": 2, "empty": 1}


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let little be on its way to a host."""
    monkeypatch.setattr(session, "INITIAL_CREDIT", 100)
    monkeypatch.setattr(session, "MAX_AHEAD", 100)
    monkeypatch.setattr(code_push, "CHUNK", 20)


@pytest.mark.usefixtures("narrow")
def test_slow_host_makes_the_reading_wait(push: Push) -> None:
    """However large the release and slow a host, little of it waits in memory."""
    slow, quick = push.host("slow"), push.host("quick")

    push.run()

    assert slow.has(TREE)
    assert quick.has(TREE)
    assert 100 < slow.most <= 100 + 2 * 20


@pytest.mark.usefixtures("narrow")
def test_host_that_takes_nothing_is_given_up(push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is silent for `lost_s` is named; the others get the release."""
    monkeypatch.setattr(CodePush, "ping_interval_s", 0.0)
    dead, other = push.host("dead"), push.host("other")
    dead.deaf = True
    taken = dead.send

    def last_words(head: bytes, payload: bytes) -> None:
        dead.last_heard = dead.last_sent = time.monotonic() - 16
        taken(head, payload)

    monkeypatch.setattr(dead, "send", last_words)

    (problem,) = push.problems()
    assert problem.startswith("dead: nothing was heard from it for ")
    assert dead.closed
    assert other.has(TREE)


@pytest.mark.parametrize("moment", ["offer", "manifest", "chunk", "finish"])
def test_shared_disk_survives_its_writer(push: Push, moment: str) -> None:
    """When the host that writes for all breaks away, another one goes on where it was."""
    first, second, third = (push.host(name, "nfs") for name in "abc")
    first.breaks = moment

    told = "a: the connection to it broke while the code was pushed: reset by peer"
    assert push.problems() == [told]
    assert second.has(TREE)
    assert bool(second.pieces) is (moment != "finish")
    assert not third.pieces


@pytest.mark.promise(12)
@pytest.mark.parametrize("asks_for", [None, [0, 0], [-1], [4], []])
def test_host_that_asks_for_what_it_cannot_lack_is_given_up(
    push: Push, asks_for: list[int] | None
) -> None:
    """Nor for all again: else the code would be sent to it for ever."""
    greedy = push.host("a")
    greedy.asks_for = asks_for
    greedy.asks_again = asks_for is None
    (problem,) = push.problems()
    assert problem.endswith("there twice" if asks_for is not None else "that nobody asked for")
