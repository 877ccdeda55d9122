"""Channels to the agents of a job's nodes, over one session with its login node."""

from __future__ import annotations

import queue
from typing import Any

import pytest

from runner.control.rpc import channels
from runner.control.rpc.channels import ChannelHub, JobChannel
from runner.control.rpc.session import Connector, HostSession
from runner.core.model.spec import Node
from runner.core.protocol.frames import Frame, FrameError
from tests.golden.builders import spec


class Session:
    """A session that keeps what is asked, and has frames to come."""

    closed = False

    def __init__(self) -> None:
        self.requests: list[tuple[str, int, bytes]] = []
        self.frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()

    def request(self, kind: str, data: dict[str, int], payload: bytes = b"") -> int:
        """Note a request."""
        assert list(data) == ["channel"]
        self.requests.append((kind, data["channel"], payload))
        return len(self.requests)

    def comes(self, channel: int, data: bytes) -> None:
        """Have bytes come from the agent of a channel."""
        self.frames.put(Frame("from_channel", {"channel": channel}, data))

    def close(self) -> None:
        """Close it."""
        self.closed = True

    def end(self) -> None:
        """Lose the connection."""
        self.closed = True
        self.frames.put(Frame("closed", {"reason": "it broke"}))


def hub() -> tuple[Session, ChannelHub]:
    """A session, and its channels."""
    session = Session()
    return session, ChannelHub(session, lambda: session.frames.get(timeout=10))


def test_bytes_keep_their_order_and_their_channel() -> None:
    """However they are mixed; those of an unknown channel, and other frames, are no one's."""
    session, both = hub()
    one, two = both.open(), both.open()
    session.frames.put(Frame("pong", {}))
    for channel, data in ((2, b"x"), (1, b"a"), (7, b"?"), (1, b"b"), (2, b"y"), (1, b"c")):
        session.comes(channel, data)
    assert [one.recv() for _ in range(3)] == [b"a", b"b", b"c"]
    assert [two.recv() for _ in range(2)] == [b"x", b"y"]
    one.send(b"1")
    two.send(b"2")
    one.send(b"3")
    assert session.requests == [
        ("open_channel", 1, b""),
        ("open_channel", 2, b""),
        ("to_channel", 1, b"1"),
        ("to_channel", 2, b"2"),
        ("to_channel", 1, b"3"),
    ]
    session.end()


def test_an_agent_that_ends_is_the_end_of_its_channel_alone() -> None:
    """Nothing can be sent to it any more; what came before is read."""
    session, both = hub()
    one, two = both.open(), both.open()
    session.comes(1, b"last")
    session.comes(1, b"")
    session.comes(2, b"on")
    assert [one.recv() for _ in range(3)] == [b"last", b"", b""]
    with pytest.raises(BrokenPipeError):
        one.send(b"?")
    assert two.recv() == b"on"
    two.send(b"!")
    session.end()


def test_the_end_of_the_session_ends_all_channels() -> None:
    """What came before is read; a new one needs another session."""
    session, both = hub()
    opened = [both.open() for _ in range(3)]
    session.comes(2, b"last")
    session.end()
    assert [channel.recv() for channel in opened] == [b"", b"last", b""]
    assert opened[1].recv() == b""
    assert both.closed
    with pytest.raises(OSError, match="login node is gone"):
        opened[0].send(b"?")


def test_a_channel_that_is_opened_too_late_has_ended() -> None:
    """Its session broke meanwhile: nobody waits for it for ever."""
    session, both = hub()
    first = both.open()
    session.end()
    assert first.recv() == b""
    assert both.open().recv() == b""


def test_closing_ends_the_agent_and_who_reads() -> None:
    """Both ends learn of it."""
    session = Session()
    channel = JobChannel(session, 5)
    channel.close()
    assert session.requests == [("close_channel", 5, b"")]
    assert channel.recv() == b""


def test_a_closed_channel_takes_nothing() -> None:
    """Whatever still comes for it is dropped, so it fills no memory."""
    session, both = hub()
    one, two = both.open(), both.open()
    one.close()
    session.comes(1, b"late")
    session.comes(2, b"on")
    assert two.recv() == b"on"
    assert one._received.qsize() == 1
    assert one.recv() == b""
    assert [*both._channels] == [2]
    session.end()


def test_a_flood_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read in time is no flood; the one that floods is told so, others go on elsewhere."""
    monkeypatch.setattr(channels, "MAX_UNREAD", 1 << 20)
    session, both = hub()
    one, two = both.open(), both.open()
    for _ in range(8):
        session.comes(1, bytes(1 << 18))
        assert len(one.recv()) == 1 << 18
    assert not one.is_flooded
    for _ in range(300):
        session.comes(1, bytes(1 << 18))
    assert two.recv() == b""
    assert session.closed
    assert one._received.qsize() == 5  # with the end
    assert sum(len(one.recv()) for _ in range(4)) == 1 << 20
    with pytest.raises(FrameError, match="more than it was asked for"):
        one.recv()


class Hub:
    """A hub that has not ended."""

    made = 0
    closed = False

    def __init__(self, session: Any, _: object) -> None:
        Hub.made += 1
        self.session = session

    def open(self) -> JobChannel:
        """Open a channel."""
        return JobChannel(Session(), 1)


def test_nodes_of_a_job_share_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """With their login node, by its address; another one is made once it is closed."""
    opened: list[str] = []

    class Direct(Connector):
        """Opens no session to a login node."""

        def open(self, node: Node, inbox: Any) -> HostSession:
            """Note it."""
            if node.in_job:
                return super().open(node, inbox)
            opened.append(node.host)
            return Session()  # type: ignore[return-value]

    monkeypatch.setattr("runner.control.rpc.session.ChannelHub", Hub)
    monkeypatch.setattr(channels, "JobChannel", JobChannel)
    connector = Direct(spec(Node("login", "hpc")), lambda _: None)
    nodes = [Node(name, "hpc", in_job=True) for name in ("n1", "n2")]
    hubs = [connector._channel_hub(node) for node in nodes]
    assert (opened, hubs[0]) == (["hpc"], hubs[1])
    connector._channel_hub(Node("n1", "other", in_job=True))
    assert opened == ["hpc", "other"]
    monkeypatch.setattr(Hub, "closed", True)
    assert connector._channel_hub(nodes[0]) is not hubs[0]
    assert opened == ["hpc", "other", "hpc"]
