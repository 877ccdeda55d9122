"""The same line from many ranks, once."""

from __future__ import annotations

import pytest

from runner.ui.console import dedup
from runner.ui.console.dedup import HOLD_S, LineDeduplicator, PendingLine, Source

OUT, ERR = 1, 2
LATER = HOLD_S + 0.001


def told(held: list[PendingLine]) -> list[str]:
    return [
        f"{','.join(str(source.rank) for source in each.sources)} {each.line.decode()}"
        for each in held
    ]


def add(
    lines: LineDeduplicator, rank: int, text: bytes, now: float = 0.0, stream: int = OUT
) -> None:
    lines.add(Source(f"n{rank}", rank), stream, text, now)


def test_equal_lines_are_one() -> None:
    """Of the same stream, in the time that they wait."""
    lines = LineDeduplicator()
    for rank in range(3):
        add(lines, rank, b"start\nready")
    add(lines, 3, b"start", stream=ERR)

    assert told(lines.pop_due(LATER)) == ["0,1,2 start", "0,1,2 ready", "3 start"]


def test_line_never_overtakes_an_earlier_one_of_its_rank() -> None:
    """Rank 1 said y before x, so its x cannot join the x that waits before y."""
    lines = LineDeduplicator()
    add(lines, 0, b"x\ny")
    add(lines, 1, b"y\nx")

    assert told(lines.pop_all()) == ["0 x", "0,1 y", "1 x"]


def test_flood_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a big piece nor many small ones; a moment later it is no flood any more."""
    monkeypatch.setattr(dedup, "FLOOD_LINES", 100)
    lines = LineDeduplicator()

    assert not lines.accepts(b"x\n" * dedup.FLOOD_CHUNK_LINES, 1.0)
    assert lines.accepts(b"x", 1.0 + LATER)
    assert all(lines.accepts(b"x", 2.0) for _ in range(100))
    assert not lines.accepts(b"x", 2.0)
    assert lines.accepts(b"x", 2.0 + LATER)
    assert not lines.accepts(b"x" * (dedup.FLOOD_BYTES + 1), 3.0)
