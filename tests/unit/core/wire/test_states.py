"""Reasons: their words, and what a run that ends by one is."""

from __future__ import annotations

import pytest

from runner.core.wire.codec import decode, encode
from runner.core.wire.states import Reason, ReasonKind

K = ReasonKind


@pytest.mark.parametrize(
    ("kind", "text", "outcome", "is_own"),
    [
        (K.RANK, "rank 3 on b why", ("failed", 1), True),
        (K.PROGRAM, "b: why", ("failed", 1), True),
        (K.PORT, "b: why", ("failed", 1), True),
        (K.START, "b: could not start: why", ("failed", 3), True),
        (K.LOST, "lost b: why", ("lost", 4), False),
        (K.SUPERVISOR, "lost b: why", ("failed", 1), True),
        (K.HOST, "b: why", ("failed", 1), True),
        (K.TERM, "b: its processes got SIGTERM", ("failed", 1), True),
        (K.STALL, "no rank made progress for why", ("failed", 1), True),
        (K.UNATTENDED, "no controller was attached for why (disconnect_s)", ("stopped", 1), True),
        (K.SCHEDULER, "ended by Slurm: why", ("stopped", 1), True),
        (K.TIME_LIMIT, "its job was about to reach its time limit", ("stopped", 130), False),
        (K.USER, "why", ("stopped", 130), False),
        (K.DECIDED, "b, which decides, has succeeded", ("succeeded", 0), False),
        (K.OTHER, "why", ("failed", 1), True),
    ],
    ids=lambda value: value.value if isinstance(value, ReasonKind) else "",
)
def test_a_reason(kind: ReasonKind, text: str, outcome: tuple[str, int], *, is_own: bool) -> None:
    reason = Reason(kind, "b", 3, 1, "why")
    assert (reason.text, reason.outcome) == (text, outcome)
    assert (reason.is_own("b"), reason.is_own("a")) == (is_own, False)
    assert decode(Reason, encode(reason)) == reason
    assert not reason.as_told_to("b").is_own("b")
    assert reason.as_told_to("a") == reason
