"""Log tail of a node: nothing lost, nothing doubled, nothing pulled too early."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.control.rpc import log_tail
from runner.control.rpc.log_tail import MAX_EVENT_BYTES, LogTailer
from runner.control.rpc.session import HostSession
from runner.core.wire.codec import Frame, FrameError
from runner.core.wire.events import Event, ProgramStarted, RankStarted
from tests.golden.builders import RUN_ID, plan

pytestmark = [pytest.mark.promise(6)]

Key = tuple[str, str]
EVENTS: Key = ("events", "")
RANK_0: Key = ("rank_0", "out")


class Asked(HostSession):
    def __init__(self) -> None:
        self.reads: dict[Key, dict[str, Any]] = {}
        self._last = 0

    def request(self, kind: str, data: dict[str, Any] | None = None, payload: bytes = b"") -> int:
        assert (kind, payload) == ("read", b"")
        assert data is not None
        self._last += 1
        key = (data.pop("source"), data.pop("stream"))
        assert key not in self.reads, "two reads of one file at a time"
        self.reads[key] = {"id": self._last, **data}
        return self._last


def reply(request_id: int, offset: int, chunk: bytes, *, eof: bool = False) -> Frame:
    return Frame("data", {"id": request_id, "offset": offset, "eof": eof}, chunk)


class Followed:
    """A follower on a node with one rank, and what came of it."""

    def __init__(self, *, elastic: bool = False, attempt: int = 0) -> None:
        self.logs: defaultdict[Key, bytes] = defaultdict(bytes)
        self.events: list[Event] = []
        node_plan = plan(1).node("a")
        order = replace(node_plan.order, attempt=attempt, first_rank=None if elastic else 0)
        shown = replace(node_plan, ranks=order.ranks, order=order)
        self.tailer = LogTailer(shown, self._sink, start_at={})
        self.session = Asked()
        self.tailer.start(self.session)

    def _sink(self, source: str, stream: str, offset: int, data: bytes) -> None:
        assert offset == len(self.logs[source, stream])
        self.logs[source, stream] += data

    def answer(
        self, key: Key, chunk: bytes = b"", *, eof: bool = False, hold_back: bool = False
    ) -> None:
        """Answer the pending read of a file."""
        read = self.session.reads.pop(key)
        frame = reply(read["id"], read["offset"], chunk, eof=eof)
        self.events += self.tailer.on_data(self.session, frame, hold_back=hold_back)

    def new_session(self) -> None:
        self.session = Asked()
        self.tailer.start(self.session)


def events(count: int) -> tuple[list[Event], bytes]:
    made = [Event(RUN_ID, "a", 0, n, 1.5, 2.5, ProgramStarted(n, "größer")) for n in range(count)]
    return made, "".join(event.to_line() for event in made).encode()


@pytest.mark.promise(12)
@pytest.mark.parametrize(
    "line",
    [
        Event(RUN_ID, "b", 0, 1, 1.5, 2.5, ProgramStarted(7)).to_line(),
        Event("another-run", "a", 0, 1, 1.5, 2.5, ProgramStarted(7)).to_line(),
        Event(RUN_ID, "a", 0, 1, 1.5, 2.5, RankStarted(1, 7)).to_line(),
        '{"kind":"rank_sta\n',
    ],
    ids=["node", "run", "rank", "torn"],
)
def test_events_about_others_are_dropped_and_counted(line: str) -> None:
    """A node reports its own end, and no other's."""
    followed = Followed()
    made, content = events(1)

    followed.answer(EVENTS, line.encode() + b"\n" + content)

    assert followed.events == made
    assert followed.tailer.dropped_events == 1


def test_ranks_of_an_attempt_before_are_no_others() -> None:
    """A node may have another rank in each attempt."""
    followed = Followed(attempt=1)
    before = Event(RUN_ID, "a", 0, 1, 1.5, 2.5, RankStarted(1, 7)).to_line()
    followed.answer(EVENTS, before.encode())
    assert (followed.events, followed.tailer.dropped_events) == ([], 0)


@pytest.mark.promise(12)
def test_event_without_an_end_is_refused() -> None:
    """It would fill the memory here."""
    followed = Followed()

    with pytest.raises(FrameError, match="an event without an end"):
        followed.answer(EVENTS, b"x" * (MAX_EVENT_BYTES + 1))


@pytest.mark.promise(12)
def test_host_that_reports_events_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """All events are kept in memory; neither their number nor the offset that it claims counts."""
    monkeypatch.setattr(log_tail, "MAX_EVENTS_BYTES", 1000)
    followed = Followed()
    line = b"x" * 299 + b"\n"
    for _ in range(3):
        followed.answer(EVENTS, line)

    with pytest.raises(FrameError, match="more events than a run can have"):
        followed.answer(EVENTS, line)


def test_log_that_must_wait_is_not_asked_for() -> None:
    """While the console is full, what is unread stays on its host; the events never wait."""
    followed = Followed()
    followed.answer(RANK_0, b"one", hold_back=True)
    followed.answer(EVENTS, hold_back=True)
    assert RANK_0 not in followed.session.reads
    assert EVENTS in followed.session.reads

    for _ in range(2):
        followed.tailer.resume_held_back(followed.session)

    assert followed.session.reads[RANK_0]["offset"] == 3


@settings(max_examples=15)
@given(st.integers(0, 2**32))
def test_all_arrives_whatever_happens(seed: int) -> None:
    """Cuts, full consoles and lost sessions: every byte of every file arrives once, in order."""
    chance = random.Random(seed)  # noqa: S311 (a story, not a key)
    made, content = events(3)
    followed = Followed()
    files = {key: chance.randbytes(chance.randrange(60)) for key in followed.session.reads}
    files[EVENTS] = content

    while not followed.tailer.is_complete:
        if not followed.session.reads or chance.random() < 0.1:
            followed.tailer.resume_held_back(followed.session)
        if chance.random() < 0.1:
            followed.new_session()
        key = chance.choice(list(followed.session.reads))
        offset = followed.session.reads[key]["offset"]
        chunk = files[key][offset : offset + chance.randrange(1, 30)]
        followed.answer(key, chunk, eof=not chunk, hold_back=chance.random() < 0.3)

    assert followed.events == made
    assert dict(followed.logs) == {
        key: data for key, data in files.items() if data and key != EVENTS
    }


def test_the_logs_of_a_rank_nobody_knew_of_are_followed_from_its_start() -> None:
    """Where torch numbers the ranks, the plan knows none; a second start is in the same files."""
    followed = Followed(elastic=True)
    event = Event(RUN_ID, "a", 0, 1, 1.5, 2.5, RankStarted(5, 77))
    again = Event(RUN_ID, "a", 0, 2, 1.5, 2.5, RankStarted(5, 78, start=2))
    followed.answer(EVENTS, (event.to_line() + again.to_line()).encode())
    assert followed.session.reads["rank_5", "out"]["offset"] == 0
    assert not followed.tailer.is_complete
    followed.answer(("rank_5", "err"), b"oh", eof=True)
    assert followed.logs["rank_5", "err"] == b"oh"
    followed.tailer.reopen()
    followed.new_session()
    assert followed.session.reads["rank_5", "err"]["offset"] == 2
