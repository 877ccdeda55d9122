"""Logs of many ranks one after the other, in order and in bounded memory."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.control.record.log_dump import LogDump
from runner.control.rpc.session import HostSession, Inbox
from runner.core.errors import Interrupted
from runner.core.model.spec import Node
from runner.core.protocol.frames import Frame
from runner.core.protocol.remote_files import CHUNK
from tests.golden.builders import plan

SIZE = 40 * CHUNK


class Host:
    """A host that answers at once, and counts what is on its way."""

    def __init__(self, inbox: Inbox) -> None:
        self.node = Node("gpu1", "10.0.0.1")
        self.closed, self.closed_locally, self.idle_s, self.last_sent = False, False, 0.0, 0.0
        self.inbox = inbox
        self.sent = 0
        self._ids = 0

    def request(self, kind: str, data: dict[str, Any] | None = None, payload: bytes = b"") -> int:
        """Send a piece of a file."""
        del payload
        self._ids += 1
        if kind == "read" and data is not None:
            left = SIZE - data["offset"] if data["stream"] == "out" else 0
            chunk = b"%d" % int(data["source"][5:]) * min(CHUNK, left)
            self.sent += len(chunk)
            told = {"id": self._ids, "offset": data["offset"], "eof": not chunk}
            self.inbox.put((cast("HostSession", self), Frame("data", told, chunk)))
        return self._ids


@pytest.fixture
def host() -> Host:
    """A new one."""
    return Host(queue.SimpleQueue())


def reading(host: Host, show: Any, full: Any = lambda: False) -> LogDump:
    """Read from it."""
    return LogDump({"gpu1": cast("HostSession", host)}, host.inbox, 5, show, {}, full)


SHARE: Any = SimpleNamespace(node="gpu1", ranks=(0, 1, 2, 3), order=plan(1, 1).nodes[0].order)


def test_one_file_is_read_and_the_others_begun(host: Host) -> None:
    """In order of their ranks, to the byte; of those that wait, a chunk each is here."""
    shown: dict[int, int] = {}
    ahead = 0

    def show(_: str, rank: int, stream: str, data: bytes) -> None:
        nonlocal ahead
        assert stream == "out"
        assert data == b"%d" % rank * len(data)
        assert rank == max([rank, *shown])
        shown[rank] = shown.get(rank, 0) + len(data)
        ahead = max(ahead, host.sent - sum(shown.values()))

    reading(host, show).run([SHARE], [0, 1, 2, 3])
    assert shown == dict.fromkeys(range(4), SIZE)
    assert ahead <= 4 * CHUNK


def test_nothing_is_fetched_for_a_reader_who_is_slow(host: Host) -> None:
    """A console that is full is waited for."""
    looks = 0

    def full() -> bool:
        nonlocal looks
        looks += 1
        if looks == 3:
            assert host.sent <= 4 * CHUNK
            host.inbox.put((None, Frame("signal", {"signal": 2})))
        return True

    with pytest.raises(Interrupted):
        reading(host, lambda *_: None, full).run([SHARE], [0, 1, 2, 3])
    assert looks >= 3
    assert host.sent <= 4 * CHUNK
