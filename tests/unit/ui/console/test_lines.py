"""Lines of ranks: whole, prefixed, without control sequences; equal ones and consequences once."""

from __future__ import annotations

import time

import pytest

from runner.ui.console import lines, traceback_folding
from runner.ui.console.lines import (
    HeldLine,
    LineAssembler,
    LineDeduplicator,
    Source,
    clean_lines,
)
from runner.ui.console.traceback_folding import (
    HOLD_BYTES,
    SETTLED_S,
    WRITING_S,
    TracebackFolder,
)

OUT = 1
ERR = 2
ME = (Source("a", 0), OUT)
LATER = lines.HOLD_S + 0.001


@pytest.mark.parametrize(
    ("wrote", "shown"),
    [
        (b"plain\ntext", b"plain\ntext"),
        (b"\x1b[31mred\nnot red", b"\x1b[31mred\x1b[0m\nnot red"),
        (b"up\x1b[1A\x1b[2Kwiped\x1b[>4;2mkeys\x1b[1 m", b"upwipedkeys"),
        (b"\x1b]0;title\x07text", b"text"),
        (b"\x1b]8;;http://x\x1b\\link", b"link"),
        (b"\x1b[?1049h\x1b7\x1bc\x1b(0text", b"text"),
        ("é\u009b2J\u009d0;t°".encode(), "é2J0;t°".encode()),
        (b"\xc2\x07\x9b2J\xc2\xc2\x9b\x9b2J", b"\x9b2J\x9b2J"),
        (b"ring\x07 back\x08 other\x0e", b"ring back other"),
        (b"cut \x1b", b"cut "),
        ("hällo\t█".encode(), "hällo\t█".encode()),
    ],
)
def test_ranks_colour_their_own_line_at_most(wrote: bytes, shown: bytes) -> None:
    """Nothing of theirs moves the cursor, or lasts beyond the line."""
    assert clean_lines(wrote, keep_colours=True) == shown
    assert b"\x1b" not in clean_lines(wrote, keep_colours=False)


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"he", b"llo\nwor", b"ld\n"], [None, b"hello", b"world"]),
        ([b"dos\r\nlines\r\n"], [b"dos\nlines"]),
        ([b"dos\r", b"\nnext\n"], [None, b"dos\nnext"]),
        ([b"\r 10%\r 20%", b"\r 30%\n"], [None, b"\r 30%"]),
        ([b"10%\r", b"20%\r", b"30%\r", b"\n"], [None, None, None, b"\r30%"]),
        ([b"\r 10%\r      \rdone\nmore\n"], [b"\rdone\nmore"]),
        ([b"a\n\r1\r2\nb\n"], [b"a\n\r2\nb"]),
    ],
)
def test_pieces_become_lines(pieces: list[bytes], shown: list[bytes | None]) -> None:
    """A line is shown when it ends, in its newest form; a carriage return marks one with others."""
    assembler = LineAssembler(1000)
    assert [assembler.feed(ME, piece, 0.0) for piece in pieces] == shown


def test_unfinished_line_is_handed_out_after_a_second_and_its_rest_later() -> None:
    """No byte is doubled, none is lost, and no empty line is made up."""
    assembler = LineAssembler(1000)
    assembler.feed(ME, b"before\nLoading", 5.0)

    assert assembler.pop_overdue(5.9) == []
    assert assembler.pop_overdue(6.0) == [(ME, b"Loading")]
    assert assembler.pop_overdue(9.0) == []
    assert assembler.feed(ME, b" still", 9.0) is None
    assert assembler.pop_overdue(9.9) == []
    assert assembler.pop_overdue(10.0) == [(ME, b" still")]
    assert assembler.feed(ME, b"\n", 11.0) is None
    assert assembler.feed(ME, b"\n", 11.0) == b""


def test_an_unfinished_line_is_patient_while_the_console_is_full() -> None:
    """Its rest may be on the way: the second begins when all that came is written."""
    assembler = LineAssembler(1000)
    assembler.feed(ME, b"half", 5.0)
    assembler.postpone(9.0)

    assert assembler.pop_overdue(9.9) == []
    assert assembler.pop_overdue(10.0) == [(ME, b"half")]


def test_endless_line_comes_in_pieces() -> None:
    """And the end of the last piece is no line."""
    assembler = LineAssembler(8)

    assert assembler.feed(ME, b"12345678", 0.0) is None
    assert assembler.feed(ME, b"9abc", 0.0) == b"123456789abc"
    assert assembler.feed(ME, b"\nx\n", 0.0) == b"x"


def told(held: list[HeldLine]) -> list[str]:
    return [
        f"{','.join(str(source.rank) for source in each.sources)} {each.line.decode()}"
        for each in held
    ]


def add(equal: LineDeduplicator, rank: int, text: bytes, stream: int = OUT) -> None:
    equal.add((Source(f"n{rank}", rank), stream), text, 0.0)


def test_equal_lines_are_one() -> None:
    """Of the same stream, in the time that they wait."""
    equal = LineDeduplicator()
    for rank in range(3):
        add(equal, rank, b"start\nready")
    add(equal, 3, b"start", stream=ERR)

    assert told(equal.pop_due(LATER)) == ["0,1,2 start", "3 start", "0,1,2 ready"]


def test_line_never_overtakes_an_earlier_one_of_its_rank() -> None:
    """Rank 1 said y before x, so its x cannot join the x that waits before y."""
    equal = LineDeduplicator()
    add(equal, 0, b"x\ny")
    add(equal, 1, b"y\nx")

    assert told(equal.pop_due()) == ["0 x", "0,1 y", "1 x"]


def test_lines_that_differ_do_not_part_equal_ones() -> None:
    """The first line of each rank differs, and is put before what all say next."""
    equal = LineDeduplicator()
    for rank in range(3):
        add(equal, rank, b"shard %d\nmodel" % rank)
        add(equal, rank, b"warning", stream=ERR)

    both = ["0,1,2 model", "0,1,2 warning"]
    assert told(equal.pop_due()) == ["0 shard 0", "1 shard 1", "2 shard 2", *both]


def test_lines_put_before_another_do_not_hold_it_up() -> None:
    """A rank that goes on to write could do so for ever."""
    equal = LineDeduplicator()
    add(equal, 0, b"x\ny")
    equal.add((Source("n1", 1), OUT), b"z", lines.HOLD_S)
    assert told(equal.pop_due(lines.HOLD_S)) == ["0 x"]
    assert told(equal.pop_due(2 * lines.HOLD_S - 0.01)) == []
    assert told(equal.pop_due(2 * lines.HOLD_S)) == ["1 z", "0 y"]


def test_flood_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a big piece nor many small ones; a moment later it is no flood any more."""
    monkeypatch.setattr(lines, "MAX_HELD", 2)
    equal = LineDeduplicator()

    assert not equal.accepts(b"x\n" * lines.FLOOD_LINES)
    add(equal, 0, b"x\ny")
    assert not equal.accepts(b"x")
    equal.pop_due(LATER)
    assert equal.accepts(b"x")


ONE = (Source("gpu1", 0), ERR)
TWO = (Source("gpu2", 1), ERR)
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
    assert due(folder, traceback_folding.HOLD_S - 0.1) == []
    assert due(folder, traceback_folding.HOLD_S) == [HEAD]
    folder.feed(ONE, HEAD, 9.0)
    flood = b"x" * HOLD_BYTES
    assert folder.feed(ONE, flood, 9.0) == HEAD + b"\n" + flood
    assert folder.pop_due() == []


@pytest.mark.promise(4, 12)
def test_a_line_of_blanks_holds_up_nothing() -> None:
    """However long it is: a rank may write a megabyte of them after a carriage return."""
    began = time.process_time()
    assert lines.without_rates(" " * 100_000) == " " * 100_000
    assert time.process_time() - began < 2
    assert lines.without_rates("50%|x| 1/2 [00:01<00:02, 3it/s]  ") == "50%|x| 1/2"
