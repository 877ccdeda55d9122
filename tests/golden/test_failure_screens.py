"""The console of a failure and its consequences: on a terminal, and in a pipe."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from runner.ui.console import console, traceback_folding
from runner.ui.console.console import Console, open_console
from tests.golden.conftest import Check
from tests.lab.waiting import wait_until
from tests.unit.ui.console.test_live import Terminal, drawn

NODES = ["h5", "h6", "h7", "h8"]
PATIENCE_S = 10.0
FRAMES = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 81, in <module>
    main()
  File "/home/ada/train.py", line 52, in main
    loss.backward()"""
PAIR = "/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553"
CLOSED = f"RuntimeError: [{PAIR}] Connection closed by peer [10.0.0.4]:"


def fail(shown: Console, has_shown_error: Callable[[], bool]) -> None:
    """Have rank 3 raise an exception of its own, and the others notice it."""
    shown.begin_attempt("", {})
    shown.message("every rank started after 2.1 s")
    errors = [f"{CLOSED}{40_000 + rank}" for rank in range(3)] + ["ValueError: lr must be > 0"]
    for rank, error in enumerate(errors):
        lines = [*FRAMES.split("\n"), *["    deeper()"] * rank, error]
        text = "".join(f"[rank{rank}]: {line}\n" for line in lines)
        shown.rank_output(NODES[rank], rank, "err", f"step {rank}\n{text}bye\n".encode())
    wait_until(has_shown_error, "the first failure's traceback", PATIENCE_S)
    shown.message("rank 3 on h8 exited with 1; stopping the rest")
    shown.flush_ranks(PATIENCE_S)
    shown.verdict("run 1-a failed after 4 s\nfirst failure: rank 3 on h8 exited with 1")
    shown.close()


def test_failure_on_a_terminal(check_screen: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each consequence is one row of 80 columns; the first failure is whole."""
    monkeypatch.setattr(traceback_folding, "WRITING_S", 0.0)
    terminal = Terminal()
    monkeypatch.setattr(console, "OUT", terminal.other)
    monkeypatch.setattr(console, "ERR", terminal.theirs)
    monkeypatch.setenv("TERM", "xterm")
    shown = open_console("auto", None, NODES)
    fail(shown, lambda: b"bye" in terminal.raw)
    terminal.hang_up()
    rows = drawn(terminal.raw)
    terminal.close()

    assert max(map(len, rows)) <= 80
    check_screen("failure-80.txt", "\n".join(rows) + "\n")


def test_failure_in_a_pipe(check_screen: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line may be as long as it has to."""
    monkeypatch.setattr(traceback_folding, "WRITING_S", 0.0)
    reading, writing = os.pipe()
    monkeypatch.setattr(console, "OUT", writing)
    monkeypatch.setattr(console, "ERR", writing)
    shown = open_console("auto", None, NODES)
    seen = bytearray()

    def has_shown_error() -> bool:
        seen.extend(os.read(reading, 65536))
        return b"bye" in seen

    fail(shown, has_shown_error)
    os.close(writing)
    while chunk := os.read(reading, 65536):
        seen.extend(chunk)
    os.close(reading)

    check_screen("failure-pipe.txt", seen.decode())
