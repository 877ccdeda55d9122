"""Known failures, each found in real output of a rank."""

from __future__ import annotations

import signal
import time

import pytest

from runner.core.outcome.known_failures import explain


def test_what_is_not_known_is_not_explained() -> None:
    """It is shown as it is."""
    assert (
        explain(["Traceback (most recent call last):", "ValueError: lr must be positive"]) is None
    )
    assert explain([], signal.SIGTERM) is None


@pytest.mark.parametrize("words", ["gloo connect ", "port: 1 ", "Connect to x failed "])
def test_a_long_line_does_not_hold_up_the_verdict(words: str) -> None:
    """A rank may print anything: ten times the length takes far less than the square of that."""

    def cost_s(length: int) -> float:
        line = words * (length // len(words))
        began = time.process_time()
        assert explain([line]) is None
        return time.process_time() - began

    assert cost_s(400_000) < 30 * cost_s(40_000) + 0.5


def test_a_failure_at_either_end_of_a_long_line_is_known() -> None:
    """What is left out of it is the middle."""
    padding = "x" * 100_000
    for line in (f"CUDA error: invalid device ordinal {padding}", f"{padding} [Errno 28]"):
        assert explain([line]) is not None
