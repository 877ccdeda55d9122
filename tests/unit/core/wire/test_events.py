"""Events as lines of a file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.core.wire.events import Ended, Event, EventBody, RankExited, parse
from runner.core.wire.states import State


def event(body: EventBody) -> Event:
    return Event("0102-0304-x-abcd", "gpu1", 1, 17, 1700000000.25, 12.5, body)


def test_line_is_flat_and_names_version_and_kind() -> None:
    """What other programs read: one object, envelope and body side by side."""
    envelope = {"v": 1, "kind": "rank_exited", "run_id": "0102-0304-x-abcd", "node": "gpu1"}
    moment = {"attempt": 1, "seq": 17, "wall": 1700000000.25, "mono": 12.5}
    body: dict[str, Any] = {"rank": 3, "code": 0, "signal": None, "error": ""}
    body |= {"traceback": "", "start": 1, "exception": "", "raised_s": 0.0, "facts": {}}

    line = event(RankExited(3, code=0)).to_line()

    assert json.loads(line) == {**envelope, **moment, **body}


def _with(**fields: Any) -> str:
    return json.dumps({**event(Ended(State.FAILED)).as_data(), **fields})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"v":1,"kind":"rank_st', "Unterminated string"),
        ("{}", "unknown kind of event: None"),
        (_with(kind=["ended"]), "unknown kind of event: list"),
        (_with(state="asleep"), "'asleep' is not a valid State"),
        (_with(survivors=7), "expected several values, got 7"),
        ("[" * 100_000, "nested too deeply"),
        (_with(killed=-1), "Ended.killed: -1 is not from 0"),
        (_with(wall=float("nan")), "Event.wall: expected a number, got nan"),
        (_with(kind="rank_started", rank="x/../../../../.bashrc.d/x_7", pid=1), "RankStarted.rank"),
        (_with(kind="program_started"), r"ProgramStarted\.pid is missing"),
    ],
)
def test_what_is_no_event_is_refused(line: str, message: str) -> None:
    """Readers of a file that a power cut left need to catch one exception only."""
    with pytest.raises(ValueError, match=message):
        parse(line)
