"""Folded tracebacks: those that follow from the first failure, and nothing else."""

from __future__ import annotations

import pytest

from runner.ui.console.lines import Source
from runner.ui.console.traceback_folding import (
    HOLD_BYTES,
    HOLD_S,
    SETTLED_S,
    WRITING_S,
    TracebackFolder,
)

ONE, TWO = (Source("gpu1", 0), 2), (Source("gpu2", 1), 2)
HEAD = b"Traceback (most recent call last):"
FRAMES = HEAD + b'\n  File "t.py", line 1, in <module>\n    main()\n'
OWN = FRAMES + b"ValueError: no lr"
CLOSED = FRAMES + b"RuntimeError: [gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:4242"
FOLDED = b"traceback (in logs): RuntimeError: Connection closed by peer"


@pytest.fixture
def folder() -> TracebackFolder:
    return TracebackFolder()


def due(folder: TracebackFolder, now: float) -> list[bytes]:
    return [lines for _, lines in folder.pop_due(now)]


def test_failure_of_its_own_waits_only_while_it_is_written(folder: TracebackFolder) -> None:
    """And is shown whole, with what came after it, in order."""
    assert folder.feed(ONE, OWN, 0.0) is None
    assert folder.feed(ONE, b"after", 0.1) is None
    assert due(folder, WRITING_S / 2) == []
    assert due(folder, WRITING_S) == [OWN + b"\nafter"]
    assert folder.feed(ONE, b"later", 1.0) == b"later"


def test_what_follows_from_another_failure_is_a_line(folder: TracebackFolder) -> None:
    """The lines after it are not part of it; the report of a failure quotes what failed first."""
    folder.feed(ONE, CLOSED + b"\nbye", 0.0)
    folder.feed(TWO, FRAMES + b"KeyboardInterrupt", 0.0)
    folded = b"traceback (in logs): KeyboardInterrupt"
    assert due(folder, SETTLED_S - 0.1) == [], "what it follows from comes first"
    assert due(folder, SETTLED_S) == [FOLDED + b"\nbye", folded]


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
    folder.feed(TWO, OWN + between + CLOSED + b"\n\nx", 2.0)
    assert due(folder, 3.0) == [FOLDED + b"\n\nx"]
    prefixed = b"\n".join(b"[rank1]: " + line for line in CLOSED.split(b"\n"))
    log_line = b"[rank1]:[W1123 10:00:00 socket.cpp] Warning: x"
    rest = b"\n[rank1]: Exception raised from recv\n[rank1]: frame #0\n" + log_line + b"\n"
    folder.feed(TWO, prefixed + rest, 4.0)
    assert due(folder, 5.0) == [FOLDED + b"\n" + log_line + b"\n"]


def test_waiting_is_bounded(folder: TracebackFolder) -> None:
    """By time, also for what is never finished, and by size."""
    folder.feed(ONE, HEAD, 0.0)
    assert due(folder, HOLD_S - 0.1) == []
    assert due(folder, HOLD_S) == [HEAD]
    folder.feed(ONE, HEAD, 9.0)
    flood = b"x" * HOLD_BYTES
    assert folder.feed(ONE, flood, 9.0) == HEAD + b"\n" + flood
    assert folder.pop_due() == []
