"""Folded tracebacks: those that follow from the first failure, and nothing else."""

from __future__ import annotations

import math

import pytest

from runner.ui.console.lines import Source
from runner.ui.console.traceback_folding import (
    HOLD_LINES,
    HOLD_S,
    SETTLED_S,
    WRITING_S,
    TracebackFolder,
)

ONE, TWO = (Source("gpu1", 0), 2), (Source("gpu2", 1), 2)
ONE_OUT = (Source("gpu1", 0), 1)
HEAD = b"Traceback (most recent call last):"
FRAMES = HEAD + b'\n  File "t.py", line 1, in <module>\n    main()\n'
OWN = FRAMES + b"ValueError: no lr"
CLOSED = FRAMES + b"RuntimeError: [gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:4242"
FOLDED = b"traceback (in logs): RuntimeError: Connection closed by peer"


@pytest.fixture
def folder() -> TracebackFolder:
    return TracebackFolder(lambda: 10_000)


def due(folder: TracebackFolder, now: float) -> list[bytes]:
    return [lines for _, lines in folder.pop_due(now)]


def test_failure_of_its_own_waits_only_while_it_is_written(folder: TracebackFolder) -> None:
    """And is shown whole, with what came after it, in order."""
    assert folder.feed(ONE, OWN, 0.0) is None
    assert folder.feed(ONE, b"after", 0.1) is None
    assert due(folder, WRITING_S / 2) == []
    assert due(folder, WRITING_S) == [OWN + b"\nafter"]
    assert folder.feed(ONE, b"later", 1.0) == b"later"


def test_consequence_waits_for_the_first_failure(folder: TracebackFolder) -> None:
    """Which is mostly reported later; the lines after it are not part of it."""
    folder.feed(ONE, CLOSED + b"\nbye", 0.0)
    assert due(folder, HOLD_S - 0.1) == []
    folder.fold_except("gpu2", 1, 1.0)
    assert due(folder, 1.1) == [FOLDED + b"\nbye"]


def test_without_a_failure_nothing_is_folded(folder: TracebackFolder) -> None:
    """A program may handle a closed connection by itself."""
    folder.feed(ONE, CLOSED, 0.0)
    assert due(folder, HOLD_S) == [CLOSED]


def test_of_a_run_that_is_over_only_what_says_so_is_a_consequence(folder: TracebackFolder) -> None:
    """Its logs come at any time: one that a program had handled may come last."""
    folder.fold_except("gpu2", 1, math.inf)
    folder.feed(ONE, OWN, 9.0)
    folder.feed(ONE_OUT, CLOSED, 9.0)
    assert due(folder, 9.0 + WRITING_S) == [OWN, FOLDED]


def test_traceback_of_the_failed_rank_stays_whole(folder: TracebackFolder) -> None:
    """Whatever its exception; of a node without a rank, those of all its ranks."""
    folder.fold_except("gpu1", 0, 0.0)
    folder.feed(ONE, CLOSED, 2.0)
    folder.feed(TWO, CLOSED, 2.0)
    assert due(folder, 3.0) == [CLOSED, FOLDED]
    folder.fold_except("gpu1", None, 4.0)
    folder.feed(ONE, CLOSED, 6.0)
    assert due(folder, 7.0) == [CLOSED]


def test_any_exception_long_after_the_failure_follows_from_it(folder: TracebackFolder) -> None:
    """But one at the same time may be a failure of its own, or even the true first one."""
    folder.fold_except("gpu1", 0, 0.0)
    folder.feed(TWO, OWN, SETTLED_S / 2)
    assert due(folder, SETTLED_S) == [OWN]
    folder.feed(TWO, OWN, SETTLED_S)
    assert due(folder, 2.0) == [b"traceback (in logs): ValueError: no lr"]


def test_equal_tracebacks_of_many_ranks_are_one(folder: TracebackFolder) -> None:
    """Whatever prefix torch writes; another one is whole."""
    other = OWN.replace(b"no lr", b"no batch")
    for stream in (ONE, TWO):
        prefix = b"[rank%d]: " % stream[0].rank
        folder.feed(stream, prefix + OWN.replace(b"\n", b"\n" + prefix) + b"\nbye", 0.0)
    folder.feed((Source("gpu3", 2), 2), other, 1.0)
    first, second, third = due(folder, 2.0)
    assert b"main()" in first
    assert second == b"traceback (as rank 0): ValueError: no lr\nbye"
    assert third == other
    folder.feed(ONE, OWN, 3.0)
    assert b"main()" in due(folder, 4.0)[0], "of the same rank"


def test_chain_of_tracebacks_is_one(folder: TracebackFolder) -> None:
    """As is all of an exception that torch prefixes; its own log lines are not part of it."""
    between = b"\n\nDuring handling of the above exception, another exception occurred:\n\n"
    folder.fold_except("gpu1", 0, 0.0)
    folder.feed(TWO, OWN + between + CLOSED + b"\n\nx", 2.0)
    assert due(folder, 3.0) == [FOLDED + b"\n\nx"]
    prefixed = b"\n".join(b"[rank1]: " + line for line in CLOSED.split(b"\n"))
    log_line = b"[rank1]:[W1123 10:00:00 socket.cpp] Warning: x"
    rest = b"\n[rank1]: Exception raised from recv\n[rank1]: frame #0\n" + log_line + b"\n"
    folder.feed(TWO, prefixed + rest, 4.0)
    assert due(folder, 5.0) == [FOLDED + b"\n" + log_line + b"\n"]


def test_waiting_is_bounded(folder: TracebackFolder) -> None:
    """By time, also for what is never finished, and by lines."""
    folder.feed(ONE, HEAD, 0.0)
    assert due(folder, HOLD_S - 0.1) == []
    assert due(folder, HOLD_S) == [HEAD]
    folder.feed(ONE, HEAD, 9.0)
    flood = b"\n".join([b"  deep"] * HOLD_LINES)
    assert folder.feed(ONE, flood, 9.0) == HEAD + b"\n" + flood
    assert folder.pop_due() == []


@pytest.mark.parametrize(
    ("columns", "told"),
    [(200, "RuntimeError: Closed by peer. More of it"), (60, "RuntimeEr…"), (9, "Ru…")],
)
def test_exception_is_cut_to_the_width(columns: int, told: str) -> None:
    """Places differ between ranks, and are left out."""
    folder = TracebackFolder(lambda: columns)
    folder.fold_except("gpu2", 1, 0.0)
    error = b"RuntimeError: [gloo/pair.cc:553] Closed by peer [10.0.0.1]:4242. More of it"
    folder.feed(ONE, FRAMES + error, 9.0)
    (shown,) = due(folder, 10.0)
    assert shown.decode().startswith(f"traceback (in logs): {told}")
