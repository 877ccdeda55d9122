"""Stream of the agent: every byte once, no more than the controller has room for, events first."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from runner.core.wire.codec import INITIAL_CREDIT
from runner.core.wire.paths import EVENTS_FILE, RunPaths
from runner.host.agent import stream
from runner.host.agent.stream import Credit, LogStream
from runner.host.process.jobs import Jobs
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.promise(6)]

REQUEST: dict[str, Any] = {"attempt": 0, "offsets": {}, "ranks": None, "others": True}


@pytest.fixture
def folder(tmp_path: Path) -> RunPaths:
    made = RunPaths(str(tmp_path), "run", "a")
    Path(made.attempt_folder(0)).mkdir(parents=True)
    return made


class Taken:
    """What was sent, by file."""

    def __init__(self, folder: RunPaths, **request: Any) -> None:
        self.credit = Credit()
        self.files: defaultdict[str, bytes] = defaultdict(bytes)
        self.starts: dict[str, int] = {}
        self.order: list[str] = []
        self.errors: dict[str, str] = {}
        self.stream = LogStream(folder, {**REQUEST, **request}, self.credit, self._send)

    def _send(self, kind: str, data: bytes, *, file: str, offset: int, error: str = "") -> None:
        assert kind == ("events" if file == EVENTS_FILE else "data")
        start = self.starts.setdefault(file, offset)
        assert offset == start + len(self.files[file])
        self.files[file] += data
        self.order.append(file)
        if error:
            self.errors[file] = error

    @property
    def logs(self) -> int:
        return sum(len(data) for file, data in self.files.items() if file != EVENTS_FILE)


def write(folder: RunPaths, name: str, content: bytes) -> None:
    with Path(folder.attempt_folder(0), name).open("ab") as file:
        file.write(content)


@pytest.mark.parametrize(
    ("chosen", "files"),
    [
        ({}, {"program.err", "rank_2.out", "rank_2.metrics", "rank_10.out", "stacks.out"}),
        ({"ranks": [10], "others": False}, {"rank_10.out"}),
    ],
)
def test_what_is_wanted_is_sent_rank_after_rank(
    folder: RunPaths, chosen: dict[str, Any], files: set[str]
) -> None:
    """No other file, whoever has put it there."""
    names = ("rank_10.out", "rank_2.metrics", "rank_2.out", "program.err", "stacks.out", "x.out")
    for name in (*names, "flight_0", "rank_2.start"):
        write(folder, name, name.encode())
    taken = Taken(folder, **chosen)
    taken.stream.send_once()
    assert dict(taken.files) == {name: name.encode() for name in files}
    order = [name for name in taken.order if name in ("rank_2.out", "rank_10.out")]
    assert order == [name for name in ("rank_2.out", "rank_10.out") if name in files]


@pytest.mark.promise(4)
def test_unread_output_stays_here_and_events_do_not_wait(folder: RunPaths) -> None:
    """Without credit no log is sent; with more, each file has its turn."""
    for rank in range(3):
        write(folder, f"rank_{rank}.out", b"x" * INITIAL_CREDIT)
    taken = Taken(folder)
    over = threading.Event()
    following = threading.Thread(target=taken.stream.follow, args=(over.is_set,), daemon=True)
    following.start()
    wait_until(lambda: taken.logs == INITIAL_CREDIT, "the credit to be used")
    Path(folder.events).write_bytes(b"{}\n")
    wait_until(lambda: taken.files[EVENTS_FILE] == b"{}\n", "the events")
    assert taken.logs == INITIAL_CREDIT
    taken.credit.grant(INITIAL_CREDIT)
    wait_until(lambda: taken.logs == 2 * INITIAL_CREDIT, "the rest of the credit")
    assert all(taken.files[f"rank_{rank}.out"] for rank in range(3))
    taken.credit.grant(INITIAL_CREDIT)
    over.set()
    following.join(60)
    assert {len(taken.files[f"rank_{rank}.out"]) for rank in range(3)} == {INITIAL_CREDIT}


def test_a_stream_that_nobody_reads_any_more_ends_and_leaves_the_credit(folder: RunPaths) -> None:
    """The next one on this connection would lack it for ever."""
    write(folder, "rank_0.out", b"x" * 1000)
    taken = Taken(folder)
    jobs = Jobs()
    job = jobs.start(lambda: taken.stream.follow(lambda: False))
    wait_until(lambda: taken.logs == 1000, "the log")
    job.is_cancelled = True
    job.join(60)
    assert not job.is_alive()
    assert taken.credit.take(INITIAL_CREDIT, wait_s=0) == INITIAL_CREDIT - 1000


@pytest.mark.parametrize("block", [3, 4, 5, 100])
def test_a_tail_says_where_it_begins(
    folder: RunPaths, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """It is read block by block; the last line may have no end.

    Of a file with nothing after it, what comes next is not taken for its tail.
    """
    monkeypatch.setattr(stream, "CHUNK", block)
    write(folder, "rank_0.out", b"1\n\n2345\n6\n")
    write(folder, "rank_0.err", b"1\n23456\n7")
    write(folder, "stacks.out", b"1\n2\n3\n")
    taken = Taken(folder, tail=2)
    taken.stream.send_once()
    assert (taken.starts["rank_0.out"], taken.files["rank_0.out"]) == (3, b"2345\n6\n")
    assert taken.files["rank_0.err"] == b"23456\n7"
    assert taken.files["stacks.out"] == b"1\n2\n3\n"
    nothing = Taken(folder, tail=0)
    nothing.stream.send_once()
    assert (nothing.starts["rank_0.out"], nothing.files["rank_0.out"]) == (10, b"")


def test_a_disk_that_fails_is_not_the_end_of_a_log(folder: RunPaths) -> None:
    """It may come back; if the run is over, what is missing is said."""
    Path(folder.stream_log(0, "rank_0", "out")).mkdir()  # reading it is an error
    taken = Taken(folder)
    taken.stream.follow(lambda: True)
    assert taken.errors == {"rank_0.out": "Is a directory"}
