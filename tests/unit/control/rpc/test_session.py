"""The controller's end of a connection, over a channel in memory."""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from runner.control.rpc import session
from runner.control.rpc.session import (
    MAX_AHEAD,
    MAX_BANNER,
    ClockOffset,
    HostSession,
    Inbox,
    Window,
)
from runner.core.spec import Node
from runner.core.wire.codec import INITIAL_CREDIT, LENGTHS, MAGIC, Frame, FrameDecoder
from runner.transport.base import Ending
from tests.lab.waiting import wait_until

NODE = Node("gpu1", "10.0.0.1")
PATIENCE_S = 60.0


class FakeChannel:
    """A channel whose other end is a test."""

    def __init__(self) -> None:
        self.coming: queue.SimpleQueue[bytes | OSError] = queue.SimpleQueue()
        self.sent: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.has_ended = False
        self.ended: Ending | None = None

    def read(self) -> bytes:
        """Return what the test put there, or fail with it; an end is an end for ever."""
        if self.has_ended:
            return b""
        got = self.coming.get()
        if isinstance(got, OSError):
            raise got
        self.has_ended = not got
        return got

    def write(self, data: bytes) -> None:
        self.sent.put(data)

    def close(self) -> None:
        self.coming.put(b"")


class Wire:
    def __init__(self) -> None:
        self.channel = FakeChannel()
        self.inbox = Inbox()
        self.session = HostSession(NODE, self.channel, self.inbox)

    def come(self, *chunks: bytes | OSError) -> None:
        for chunk in chunks:
            self.channel.coming.put(chunk)

    def next(self) -> Frame:
        session, frame = self.inbox.get(timeout=PATIENCE_S)
        assert session is self.session
        return frame

    def sent(self) -> Frame:
        (frame,) = FrameDecoder().feed(self.channel.sent.get(timeout=PATIENCE_S))
        return frame


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.session.close()


HELLO = Frame("hello", {"id": None, "mono": 1.0, "wall": 2.0})
PONG = Frame("pong", {"id": 1, "mono": 3.0, "wall": 4.0, "disk_wait_s": 0.0}, b"\0" * 9)
BANNER = b"Welcome to gpu1!\nLast login: never\n"


@pytest.mark.parametrize("banner", [b"", BANNER, MAGIC[:5] + BANNER], ids=["none", "one", "teaser"])
@pytest.mark.parametrize("size", [1, 4096])
def test_wire_begins_after_the_banner(wire: Wire, banner: bytes, size: int) -> None:
    """Whatever a login shell prints first is no frame, however the stream is cut."""
    abandoned = Frame("refused", {"id": 7, "reason": "slow"})
    wire.session.abandoned.add(7)
    stream = banner + MAGIC + HELLO.pack() + abandoned.pack() + PONG.pack()

    wire.come(*(stream[at : at + size] for at in range(0, len(stream), size)))

    assert [wire.next(), wire.next()] == [HELLO, PONG]
    assert wire.session.banner == banner
    told_at = wire.session.clock.to_local(1.0, 2.0)
    assert told_at == pytest.approx(time.monotonic(), abs=PATIENCE_S)


def test_an_endless_banner_is_not_kept(wire: Wire) -> None:
    """Its end is, which says why our code did not start there."""
    wire.come(*[b"x" * MAX_BANNER] * 3, b"sh: 1: python3: not found\n", b"")

    assert wire.next() == Frame("closed", {"reason": "the connection ended"})
    assert len(wire.session.banner) == MAX_BANNER
    assert wire.session.banner.endswith(b"python3: not found\n")


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (b"", "the connection ended"),
        (OSError("reset by peer"), "reset by peer"),
        (b"\xff" * 8, "it sent a frame of impossible size"),
    ],
)
def test_end_is_reported_once(wire: Wire, last: bytes | OSError, reason: str) -> None:
    """However a wire ends, and whoever then closes it, one frame says so."""
    wire.come(MAGIC + HELLO.pack(), last)

    assert [wire.next(), wire.next()] == [HELLO, Frame("closed", {"reason": reason})]
    assert wire.session.closed
    wire.session.close()
    wire.inbox.put((None, Frame("signal", {})))
    assert wire.inbox.get(timeout=PATIENCE_S)[0] is None


@pytest.mark.promise(12)
@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ('{"kind":"pong","mono":1}', "a malformed reply 'pong': wall is missing"),
        ('{"kind":"data","id":1,"file":"x","offset":-1}', "offset: -1 is not from 0"),
        ('{"kind":"closed","reason":"ha"}', "an unknown reply 'closed'"),
        ("[" * 100_000, "a frame without a readable header"),
        ('{"kind":"facts","mono":1,"wall":1,"facts":{"node":"a","gpus":[7]}}', "Facts.gpus: "),
    ],
    ids=lambda text: text[:40],
)
def test_odd_frame_loses_its_host_and_says_why(wire: Wire, header: str, complaint: str) -> None:
    """A host may be compromised: its reader ends, is closed, and names the field."""
    odd = header.encode()
    wire.come(MAGIC, LENGTHS.pack(len(odd), 0) + odd)

    closed = wire.next()
    assert closed.kind == "closed"
    assert re.search(f"it sent .*{complaint}", closed.data["reason"])
    assert (wire.session.closed, wire.channel.has_ended) == (True, False)
    assert wire.channel.coming.get_nowait() == b"", "the channel was closed"


@pytest.mark.promise(13)
@pytest.mark.parametrize(
    ("pings", "offset"),
    [
        ([(10.0, 14.0, 1000.0), (20.0, 21.0, 1012.0), (30.0, 36.0, 1022.0)], 20.5 - 1012.0),
        ([(10.0, 10.2, 1000.0), (20.0, 23.0, 1051.0)], 21.5 - 1051.0),
    ],
    ids=["the quickest decides", "a machine that slept has another"],
)
def test_offset_of_a_clock(
    pings: list[tuple[float, float, float]], offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half the way of a ping is assumed; before the last boot the wall clock counts."""
    clock = ClockOffset()
    for number, (asked, told, theirs) in enumerate(pings):
        monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda now=asked: now))
        clock.on_ping(number)
        monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda now=told: now))
        clock.on_pong(number, theirs, theirs)
    clock.on_pong(99, 0.0, 0.0)

    assert clock.offset == offset
    assert clock.to_local(3e6, pings[0][2] - 100) < 0.0


def test_only_what_somebody_must_have_taken_ends_a_silence(wire: Wire) -> None:
    """Pings go into a cut cable for as long as its buffer lasts; the bytes of a push do not."""
    wire.session.last_heard = wire.session.last_sent = time.monotonic() - 100
    for _ in range(3):
        wire.session.request("ping")
        wire.sent()
    assert wire.session.idle_s >= 100
    wire.session.send(bytes(session.SEND_SLICE + 1))
    wire.channel.sent.get(timeout=PATIENCE_S)
    wire.channel.sent.get(timeout=PATIENCE_S)
    assert wire.session.idle_s < 50


@pytest.mark.promise(12)
def test_host_that_sends_more_than_anybody_takes_is_given_up(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside a wait nothing else bounds how much of this machine's memory it fills."""
    monkeypatch.setattr(session, "MAX_UNREAD", 1000)
    frame = Frame("stored", {"new": True}, bytes(300)).pack()
    wire.come(MAGIC, frame, frame)
    assert [wire.next().kind for _ in range(2)] == ["stored"] * 2
    wire.come(*[frame] * 3)
    wait_until(lambda: wire.session.closed, "its end")
    closed = [wire.next() for _ in range(3)][-1]
    assert (closed.kind, closed.data["reason"]) == ("closed", "it sent more than it may")


@pytest.mark.promise(4)
def test_a_host_may_stream_more_when_what_came_is_taken_and_not_held(wire: Wire) -> None:
    """While a console is full nothing more is asked for; events need no room."""
    wire.come(MAGIC)
    size = INITIAL_CREDIT // 2
    log = Frame("data", {"id": 1, "file": "rank_0.out", "offset": 0}, bytes(size))
    event = Frame("events", {"id": 1, "file": "", "offset": 0}, bytes(size))
    wire.come(event.pack(), log.pack())
    assert [wire.next().kind for _ in range(2)] == ["events", "data"]
    assert (wire.sent().kind, wire.channel.sent.qsize()) == ("credit", 0)
    wire.session.hold(is_held=True)
    wire.come(log.pack())
    wire.next()
    wire.session.hold(is_held=False)
    credit = wire.sent()
    assert (credit.kind, credit.data["bytes"]) == ("credit", size)


@pytest.mark.parametrize(
    ("speed", "ahead"),
    [(100 << 10, INITIAL_CREDIT), (4 << 20, 2 << 20), (1 << 30, MAX_AHEAD)],
    ids=["slow", "usual", "fast"],
)
def test_what_is_under_way_is_taken_in_half_a_second(
    monkeypatch: pytest.MonkeyPatch, speed: int, ahead: int
) -> None:
    """A stop waits no longer than that behind it; slower than a certain speed counts as that."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stream = Window()
    for _ in range(4):
        stream.ahead = 0
        now += 0.5
        stream.on_taken(speed // 2)
    assert stream.room == ahead
