"""Updates of a record by what hosts send: a host reports of itself alone."""

from __future__ import annotations

import pytest

from runner.core.protocol.events import Ended, Event, EventBody, RankExited
from runner.core.protocol.states import State
from runner.workflows.live.record_updates import _may_report
from tests.golden.builders import plan


@pytest.mark.parametrize(
    ("run_id", "node", "attempt", "body", "legal"),
    [
        ("", "a", 0, RankExited(0, 1), True),
        ("", "b", 0, Ended(State.FAILED), False),
        ("another", "a", 0, Ended(State.FAILED), False),
        ("", "a", 0, RankExited(1, 1), False),
        ("", "a", 7, RankExited(1, 1), True),
    ],
    ids=["its own", "of another node", "of another run", "of a rank elsewhere", "of before"],
)
def test_a_host_reports_of_itself(
    run_id: str, node: str, attempt: int, body: EventBody, legal: bool
) -> None:
    """What it says of others is left out, as by `attach`."""
    known = plan(1, 1)
    event = Event(run_id or known.run_id, node, attempt, 1, 1.0, 1.0, body)

    assert _may_report("a", event, known) is legal
