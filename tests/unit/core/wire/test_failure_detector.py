"""Judging peers by their silence."""

from __future__ import annotations

import pytest

from runner.core.wire.timing import FailureDetector


def test_a_pause_of_our_own_is_no_silence_of_others() -> None:
    """They may have been held up a bit longer, and what they said meanwhile is read first.

    One that stays silent is lost after all.
    """
    detector = FailureDetector(lost_s=15.0)
    assert detector.check(100.0)
    assert not detector.check(130.0)
    assert not detector.check(130.5)
    verdicts = []
    for now in range(131, 160):
        assert detector.check(now)
        verdicts.append(detector.is_lost(now - 98.0))
    assert verdicts.index(True) == 12  # 143: 2 s before the pause, and 13 s after it


def test_one_that_pauses_at_every_turn_still_judges() -> None:
    """A host that was always slow would never notice that another is lost."""
    detector = FailureDetector(lost_s=15.0)
    judged = [detector.check(100.0 + 3 * turn) for turn in range(40)]
    assert sum(judged) == 20
    silence_s = 39 * 3.0
    verdicts = {
        detector.is_lost(silence_s),
        detector.check(220.0) and detector.is_lost(silence_s + 3),
    }
    assert True in verdicts


@pytest.mark.parametrize(
    ("silence_s", "lost_s", "expected"),
    [(15.0, None, False), (15.1, None, True), (20.0, 60.0, False), (70.0, 60.0, True)],
)
def test_silence_becomes_loss(silence_s: float, lost_s: float | None, *, expected: bool) -> None:
    """After its time; the controller judges each node by what others know of it."""
    detector = FailureDetector(lost_s=15.0)
    assert detector.check(100.0)
    assert detector.is_lost(silence_s, lost_s=lost_s) is expected
