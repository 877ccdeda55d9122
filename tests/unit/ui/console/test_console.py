"""The console in a pipe: whole lines, and no rank waits for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from runner.ui.console import console, writer
from runner.ui.console.console import Console
from tests.lab.waiting import PATIENCE, wait_until


class Pipe:
    """What a terminal would show, in place of one of our standard streams."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()

    def text(self) -> str:
        """Return all that was written, and end it."""
        os.close(self.writing)
        with os.fdopen(self.reading, "rb") as stream:
            return stream.read().decode()

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
    """However output is cut, a line is whole when it is shown, also an empty one.

    A rank may die in the middle of a line; before our own last words it is completed. Ranks that
    were not chosen are not shown.
    """
    shown = Console(frozenset({0, 1}))
    shown.message("host said \udcff\nall")
    for chunk in (b"he", b"llo\n\nw\xc3", b"\xbc\nhalf a li"):
        shown.rank_output("a", 0, "out", chunk)
        shown.rank_output("b", 1, "out", chunk)
        shown.rank_output("c", 2, "out", chunk)
        shown.rank_output("a", 0, "err", chunk)
    shown.flush_ranks()
    shown.message("run failed")
    shown.close()

    lines = out.text().splitlines()
    for label in ("[a:0] ", "[b:1] "):
        of_rank = [line for line in lines if line.startswith(label)]
        assert of_rank == [f"{label}{text}" for text in ("hello", "", "wü", "half a li")]
    assert len(lines) == 8
    ours = ["host said \\udcff", "all", "[a:0] hello", "[a:0] ", "[a:0] wü", "[a:0] half a li"]
    assert err.text().splitlines() == [*ours, "run failed"]


@pytest.mark.parametrize("is_blocking", [True, False])
def test_console_that_nobody_reads_is_full(
    out: Pipe, err: Pipe, monkeypatch: pytest.MonkeyPatch, is_blocking: bool
) -> None:
    """`show` never waits; who asks `is_full` knows when to fetch no more, and when to go on.

    Other programs may have put a terminal that we share into nonblocking mode.
    """
    monkeypatch.setattr(console, "MAX_WAITING_BYTES", 1000)
    os.set_blocking(out.writing, is_blocking)
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


def test_a_pipe_has_lines_of_mere_figures_too(out: Pipe, err: Pipe) -> None:
    """It has no area that would show them."""
    line = b'{"step": 1, "steps": 9}\n'
    shown = Console()
    shown.begin_attempt("", {})
    shown.rank_output("a", 0, "out", line)
    shown.close()

    assert out.text() == f"[a:0] {line.decode()}"
    assert err.text() == ""
