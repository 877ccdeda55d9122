"""The console in a pipe: whole lines, and no rank waits for it."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from runner.ui.console import console, writer
from runner.ui.console.console import Console
from tests.lab.waiting import PATIENCE, wait_until
from tests.unit.ui.console.test_live import Clock


class Pipe:
    """What a terminal would show, in place of one of our standard streams."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self._seen = b""

    def text(self) -> str:
        """Return all that was written, and end it."""
        os.close(self.writing)
        while chunk := os.read(self.reading, 65536):
            self._seen += chunk
        os.close(self.reading)
        return self._seen.decode()

    def peek(self) -> bytes:
        """Return what was written so far."""
        while select.select([self.reading], [], [], 0)[0]:
            self._seen += os.read(self.reading, 65536)
        return self._seen

    def drop(self) -> None:
        for descriptor in (self.reading, self.writing):
            with suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    pipe = Pipe()
    monkeypatch.setattr(console, "OUT", pipe.writing)
    yield pipe
    pipe.drop()


@pytest.fixture
def err(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    pipe = Pipe()
    for module in (console, writer):
        monkeypatch.setattr(module, "ERR", pipe.writing)
    yield pipe
    pipe.drop()


def test_lines_of_ranks_do_not_mix(out: Pipe, err: Pipe) -> None:
    """However output is cut, a line is whole when it is shown, also an empty one."""
    shown = Console()
    shown.message("host said \udcff")
    for chunk in (b"he", b"llo\n\nw\xc3", b"\xbc\n"):
        shown.rank_output("a", 0, "out", chunk)
        shown.rank_output("b", 1, "out", chunk)
        shown.rank_output("a", 0, "err", chunk)
    shown.close()

    assert out.text().splitlines() == [
        "[a:0] hello",
        "[a:0] ",
        "[b:1] hello",
        "[b:1] ",
        "[a:0] wü",
        "[b:1] wü",
    ]
    assert err.text() == "host said \\udcff\n[a:0] hello\n[a:0] \n[a:0] wü\n"


def test_last_line_without_an_end_is_shown_at_the_end(out: Pipe, err: Pipe) -> None:
    """A rank may die in the middle of a line; before our own last words it is completed."""
    shown = Console()
    shown.rank_output("a", 0, "out", b"done\nhalf a li")
    shown.rank_output("a", 0, "err", b"Killed")
    shown.flush_ranks()
    shown.message("run failed")
    shown.close()

    assert out.text() == "[a:0] done\n[a:0] half a li\n"
    assert err.text() == "[a:0] Killed\nrun failed\n"


def test_only_chosen_ranks_are_shown(out: Pipe, err: Pipe) -> None:
    """`console_ranks` chooses; our own lines are always there."""
    shown = Console(frozenset({1}))
    shown.rank_output("a", 0, "out", b"zero\nmore")
    shown.rank_output("a", 1, "out", b"one\n")
    shown.message("started\nall")
    shown.close()

    assert out.text() == "[a:1] one\n"
    assert err.text() == "started\nall\n"


def test_console_that_nobody_reads_is_full(
    out: Pipe, err: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`show` never waits; who asks `full` knows when to fetch no more, and when to go on."""
    monkeypatch.setattr(console, "MAX_WAITING_BYTES", 1000)
    line = b"x" * 99 + b"\n"
    shown = Console()
    shown.rank_output("a", 0, "out", line * 2000)
    full = shown.is_full
    text: list[str] = []
    reader = threading.Thread(target=lambda: text.append(_drain(out, 2000 * 106)))
    reader.start()
    reader.join(30 * PATIENCE)
    wait_until(lambda: not shown.is_full, "room for more")
    shown.close()

    assert full
    assert text[0].count("\n") == 2000
    assert err.text() == ""


def _drain(pipe: Pipe, size: int) -> str:
    seen = b""
    while len(seen) < size:
        seen += os.read(pipe.reading, 65536)
    return seen.decode()


def test_reader_that_left_is_told_once_and_not_missed(out: Pipe, err: Pipe) -> None:
    """After `| head` has seen enough, the run goes on without it."""
    os.close(out.reading)
    shown = Console()
    shown.rank_output("a", 0, "out", b"one\n")
    shown.rank_output("a", 0, "out", b"two\n")
    shown.message("run succeeded")
    shown.close()

    assert sorted(err.text().splitlines()) == [
        "note: the output is no longer read; the run continues, and its log files are complete",
        "run succeeded",
    ]


def test_terminal_in_nonblocking_mode_loses_nothing(out: Pipe, err: Pipe) -> None:
    """Other programs may have set that on a terminal we share."""
    os.set_blocking(out.writing, False)
    shown = Console()
    shown.rank_output("a", 0, "out", b"x" * 199999 + b"\n")

    text = _drain(out, 6 + 199999 + 1)
    shown.close()

    assert len(text) == 6 + 199999 + 1
    assert err.text() == ""


def test_lines_of_mere_figures_are_one_now_and_then(out: Pipe, err: Pipe) -> None:
    """Other lines are all there; the last figures are in words, and once."""
    clock = Clock()
    shown = Console(clock=clock)
    shown.begin_attempt("", {})
    shown.rank_output("a", 0, "out", b'{"step": 0, "steps": 9}\n')
    wait_until(lambda: b"0/9" in out.peek(), "the first figures")
    for step in range(1, 9):
        shown.rank_output("a", 0, "out", b'{"step": %d, "steps": 9, "loss": 0.5}\n' % step)
        shown.rank_output("b", 1, "out", b'{"step": %d, "steps": 9}\nbye %d\n' % (step, step))
    clock.now += 31.0
    wait_until(lambda: b"8/9" in out.peek(), "the last figures")
    shown.rank_output("a", 0, "out", b'{"step": 9, "steps": 9}\n')
    shown.flush_ranks()
    shown.close()

    assert out.text().splitlines() == [
        "[a:0] 0/9",
        *(f"[b:1] bye {step}" for step in range(1, 9)),
        "[a:0] 8/9  loss 0.5",
        "[a:0] 9/9  loss 0.5",
    ]
    assert err.text() == ""


def test_figures_are_those_of_one_rank_and_come_before_its_next_line(out: Pipe, err: Pipe) -> None:
    """The first that has some, else the last of them would be missing."""
    shown = Console()
    shown.begin_attempt("", {})
    for rank in (1, 0):
        text = b'start\n{"step": 1, "steps": 2}\nhalf\n{"step": 2, "steps": 2}\nsaved\n'
        shown.rank_output("a", rank, "out", text)
    shown.close()

    told = ["start", "1/2", "half", "2/2", "saved"]
    assert out.text().splitlines() == [
        *(f"[a:1] {each}" for each in told),
        *(f"[a:0] {each}" for each in ("start", "half", "saved")),
    ]
    assert err.text() == ""


def test_output_of_no_attempt_is_shown_as_it_is(out: Pipe, err: Pipe) -> None:
    """`logs` shows every line."""
    line = b'{"step": 1, "steps": 9}\n'
    shown = Console()
    shown.rank_output("a", 0, "out", line)
    shown.close()

    assert out.text() == f"[a:0] {line.decode()}"
    assert err.text() == ""


@pytest.mark.usefixtures("out", "err")
def test_what_was_shown_last_is_known() -> None:
    """Where messages are shown, whole, and as it was shown; nothing else."""
    shown = Console()
    shown.begin_attempt("", {"a": "/work"})
    shown.rank_output("a", 0, "err", b"[rank0]: File /work/t.py\nValueError: x\n")
    shown.rank_output("a", 0, "out", b"elsewhere\n")
    assert shown.has_just_shown("a", ["File /work/t.py", "ValueError: x"])
    assert not shown.has_just_shown("a", ["File /work/t.py", "ValueError: y"])
    assert not shown.has_just_shown("a", ["elsewhere"])
    shown.message("no progress\nrank 1 is in load_batch")
    assert shown.has_just_shown("", ["rank 1 is in load_batch"])
    shown.rank_output("a", 0, "err", b"x\n" * console.SEEN_LINES)
    assert not shown.has_just_shown("a", ["ValueError: x"])
    shown.close()
