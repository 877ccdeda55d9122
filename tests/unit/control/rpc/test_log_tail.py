"""Log tail of a node: nothing lost, nothing doubled, nothing pulled too early."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any, cast

import pytest

from runner.control.rpc import log_tail
from runner.control.rpc.log_tail import LogTailer
from runner.control.rpc.session import HostSession
from runner.core.wire.codec import Frame, FrameError
from runner.core.wire.events import Event, ProgramExited, ProgramStarted, RankStarted
from runner.core.wire.paths import EVENTS_FILE
from tests.golden.builders import RUN_ID, plan
from tests.unit.control.rpc.test_wait import FakeSession

pytestmark = [pytest.mark.promise(6)]

RANK_0 = "rank_0.out"


class Followed:
    """A follower on a node with one rank, and what came of it."""

    def __init__(self, *, elastic: bool = False, attempt: int = 0, **options: Any) -> None:
        self.logs: defaultdict[str, bytes] = defaultdict(bytes)
        self.events: list[Event] = []
        node_plan = plan(1).node("a")
        order = replace(node_plan.order, attempt=attempt, first_rank=None if elastic else 0)
        shown = replace(node_plan, ranks=order.ranks, order=order)
        self.tailer = LogTailer(shown, self._sink, **options)
        self.connect()

    def connect(self) -> None:
        self.host = FakeSession("a")
        self.session = cast("HostSession", self.host)
        self.tailer.start(self.session)

    def _sink(self, source: str, stream: str, offset: int, data: bytes) -> None:
        file = f"{source}.{stream}"
        assert offset == len(self.logs[file])
        self.logs[file] += data

    def come(self, file: str, chunk: bytes, offset: int | None = None) -> None:
        """Have what follows of a file come, unless it is told from where it is."""
        if offset is None:
            offset = self.tailer._offsets.get(file, 0)
        data = {"id": len(self.host.sent), "file": file, "offset": offset, "error": ""}
        kind = "events" if file == EVENTS_FILE else "data"
        self.events += self.tailer.on_frame(Frame(kind, data, chunk))

    def end(self) -> None:
        self.events += self.tailer.on_frame(Frame("streamed", {"id": len(self.host.sent)}))


def events(count: int) -> tuple[list[Event], bytes]:
    made = [Event(RUN_ID, "a", 0, n, 1.5, 2.5, ProgramExited(error="größer")) for n in range(count)]
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

    followed.come(EVENTS_FILE, line.encode() + b"\n" + content)

    assert followed.events == made
    assert followed.tailer.dropped_events == 1
    next_one = Followed(attempt=1)  # in which the node may have other ranks than it had
    before = Event(RUN_ID, "a", 0, 1, 1.5, 2.5, RankStarted(1, 7)).to_line()
    next_one.come(EVENTS_FILE, before.encode())
    assert (next_one.events, next_one.tailer.dropped_events) == ([], 0)


@pytest.mark.promise(12)
def test_host_that_reports_events_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept in memory, also one without an end; no offset that it claims counts."""
    monkeypatch.setattr(log_tail, "MAX_EVENTS_BYTES", 1000)
    followed = Followed()
    for _ in range(3):
        followed.come(EVENTS_FILE, b"x" * 300)

    with pytest.raises(FrameError, match="more events than a run can have"):
        followed.come(EVENTS_FILE, b"x" * 300)


@pytest.mark.promise(12)
@pytest.mark.parametrize(
    ("file", "offset"),
    [
        *((RANK_0, offset) for offset in (0, 2, 4)),  # of which 3 bytes have come
        *(("rank_1.out", 0), ("../x.out", 0), ("rank_0.out/", 0), ("order.json", 0)),
    ],
)
def test_what_was_not_asked_for_is_refused(file: str, offset: int) -> None:
    """A byte comes once, and is shown where it is; a rank of another node is not."""
    followed = Followed()
    followed.come(RANK_0, b"one")
    with pytest.raises(FrameError, match=r"nobody asked for|do not follow the last ones"):
        followed.come(file, b"x", offset)
    with pytest.raises(FrameError, match="nobody asked for"):  # events are another kind of reply
        list(followed.tailer.on_frame(Frame("data", {"id": 1, "file": EVENTS_FILE, "offset": 0})))


def test_what_a_cut_leaves_goes_on_over_another_connection() -> None:
    """Every byte comes once, in order, also of a line that was cut."""
    made, content = events(3)
    followed = Followed()
    for chunk in (content[:100], content[100:]):
        followed.come(EVENTS_FILE, chunk)
        followed.come(RANK_0, chunk)
        followed.connect()
    offsets = dict.fromkeys((EVENTS_FILE, RANK_0), len(content))
    assert followed.host.sent[-1]["offsets"] == offsets
    followed.end()
    assert followed.tailer.is_complete
    assert followed.events == made
    assert dict(followed.logs) == {RANK_0: content}


def test_ranks_that_torch_assigns_are_whichever_come() -> None:
    """The plan knows none; after its node came back, the same files go on."""
    followed = Followed(elastic=True)
    assert followed.host.sent[-1]["ranks"] is None
    followed.come("rank_5.err", b"oh")
    followed.end()
    assert followed.logs["rank_5.err"] == b"oh"
    followed.tailer.reopen()
    followed.tailer.start(followed.session)
    assert not followed.tailer.is_complete
    assert followed.host.sent[-1]["offsets"] == {"rank_5.err": 2}


def test_what_nobody_reads_is_not_streamed() -> None:
    """A request for nothing takes the place of the one before, of which the rest is ignored."""
    followed = Followed()
    number = len(followed.host.sent)
    followed.tailer.stop(followed.session)
    asked = followed.host.sent[-1]
    assert (asked["ranks"], asked["others"], asked["once"]) == ([], False, True)
    late = Frame("data", {"id": number, "file": RANK_0, "offset": 0}, b"late")
    assert list(followed.tailer.on_frame(late)) == []
    assert not followed.logs


def test_a_tail_is_asked_for_until_a_log_has_come() -> None:
    """From then on every byte counts, also over another connection."""
    followed = Followed(tail=2, ranks=[0])
    assert followed.host.sent[-1]["tail"] == 2
    assert not followed.host.sent[-1]["others"]
    followed.tailer.start(followed.session)
    assert followed.host.sent[-1]["tail"] == 2
    followed.come(RANK_0, b"", 100)
    followed.tailer.start(followed.session)
    assert "tail" not in followed.host.sent[-1]
    assert followed.host.sent[-1]["offsets"] == {RANK_0: 100}
