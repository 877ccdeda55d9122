"""What is told of an attempt under way."""

from __future__ import annotations

import pytest

from runner.control.run.reporters import StallReporter
from runner.core.protocol.events import Event, ProgressResumed, Stalled
from tests.golden.builders import plan


@pytest.mark.parametrize(
    ("history", "told"),
    [
        ("a+ a- a+ b+", "+"),
        ("a+ b+ a- a+", "+-+"),
        ("b+ a+ a- b- a+", "+-"),
    ],
)
def test_a_stall_is_reported_once_all_hosts_have_seen_it(history: str, told: str) -> None:
    """One host alone may see a short progress; the record of one is read before another's."""
    messages: list[str] = []
    reporter = StallReporter(
        plan(1, 1), messages.append, read_stacks=lambda _: "", render=lambda *_: ""
    )
    for step in history.split():
        body = Stalled(2.0, problem="no answer") if step[1] == "+" else ProgressResumed()
        reporter.on_event(Event("run", step[0], 0, 0, 0.0, 0.0, body))
    signs = {"no progress on any rank": "+", "the run makes progress a": "-"}
    assert "".join(signs.get(text[:24].rstrip(), "") for text in messages) == told
