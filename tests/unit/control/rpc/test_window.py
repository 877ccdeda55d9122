"""How far a stream may be ahead of whoever takes it."""

from __future__ import annotations

import time

import pytest

from runner.control.rpc.session import MAX_AHEAD, Window
from runner.core.wire.codec import INITIAL_CREDIT


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("speed", "ahead"),
    [(100 << 10, INITIAL_CREDIT), (4 << 20, 2 << 20), (1 << 30, MAX_AHEAD)],
    ids=["slow", "usual", "fast"],
)
def test_what_is_under_way_is_taken_in_half_a_second(
    clock: list[float], speed: int, ahead: int
) -> None:
    """A stop waits no longer than that behind it; slower than a certain speed counts as that."""
    stream = Window()
    for _ in range(4):
        stream.ahead = 0
        clock[0] += 0.5
        stream.on_taken(speed // 2)
    assert stream.room == ahead


@pytest.mark.usefixtures("clock")
def test_credit_is_granted_in_lumps() -> None:
    """Else each piece would cost a message; what is granted is under way."""
    stream = Window(INITIAL_CREDIT)
    stream.on_taken(INITIAL_CREDIT // 5)
    assert stream.grant() == 0
    stream.on_taken(INITIAL_CREDIT // 5)
    assert stream.grant() == 2 * (INITIAL_CREDIT // 5)
    assert stream.grant() == 0
