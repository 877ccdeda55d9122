"""Lines from pieces: torn, redrawn, unfinished."""

from __future__ import annotations

import pytest

from runner.ui.console.line_buffer import LineAssembler

ME = ("a", 0)


def fed(*pieces: bytes) -> list[bytes | None]:
    lines = LineAssembler(1000)
    return [lines.feed(ME, piece, 0.0) for piece in pieces]


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"one\ntwo\n"], [b"one\ntwo"]),
        ([b"he", b"llo\nwor", b"ld\n"], [None, b"hello", b"world"]),
        ([b"\n\nx\n"], [b"\n\nx"]),
        ([b"dos\r\nlines\r\n"], [b"dos\nlines"]),
        ([b"dos\r", b"\nnext\n"], [None, b"dos\nnext"]),
        ([b"odd\r\r\n"], [b"odd"]),
        ([b"\r 10%\r 20%", b"\r 30%\n"], [None, b"\r 30%"]),
        ([b"10%\r", b"20%\r", b"30%\r", b"\n"], [None, None, None, b"\r30%"]),
        ([b"\r 10%\r      \rdone\nmore\n"], [b"\rdone\nmore"]),
        ([b"a\n\r1\r2\nb\n"], [b"a\n\r2\nb"]),
    ],
)
def test_pieces_become_lines(pieces: list[bytes], shown: list[bytes | None]) -> None:
    """A line is shown when it ends, in its newest form; a carriage return marks one with others."""
    assert fed(*pieces) == shown


def test_unfinished_line_is_handed_out_after_a_second_and_its_rest_later() -> None:
    """No byte is doubled, none is lost, and no empty line is made up."""
    lines = LineAssembler(1000)
    lines.feed(ME, b"before\nLoading", 5.0)

    assert lines.pop_overdue(5.9) == []
    assert lines.pop_overdue(6.0) == [(ME, b"Loading")]
    assert lines.pop_overdue(9.0) == []
    assert lines.feed(ME, b" still", 9.0) is None
    assert lines.pop_overdue(9.9) == []
    assert lines.pop_overdue(10.0) == [(ME, b" still")]
    assert lines.feed(ME, b"\n", 11.0) is None
    assert lines.feed(ME, b"\n", 11.0) == b""


def test_endless_line_comes_in_pieces() -> None:
    """And the end of the last piece is no line."""
    lines = LineAssembler(8)

    assert lines.feed(ME, b"12345678", 0.0) is None
    assert lines.feed(ME, b"9abc", 0.0) == b"123456789abc"
    assert lines.feed(ME, b"\nx\n", 0.0) == b"x"
