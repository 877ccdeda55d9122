"""Data of a page: what it says of runs, how much of it there is, and that nothing hides in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from runner.core.history.run_data import RunData
from runner.core.protocol import events
from runner.core.protocol.events import Event, StopCause
from runner.ui.page import event_texts, page_data
from runner.ui.page.timeline import FAILED, STOPPED, UNSEEN
from tests.page_runs import HOSTILE, LAUNCH, failed_run, good_run


def only(run: RunData) -> dict[str, Any]:
    (found,) = page_data([run], LAUNCH + 1000)["runs"]
    assert isinstance(found, dict)
    return found


def texts_in(data: object) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for value in (*data, *data.values()):
            yield from texts_in(value)
    elif isinstance(data, (list, tuple)):
        for value in data:
            yield from texts_in(value)


def test_it_is_json_and_every_text_is_printable() -> None:
    """Neither a line separator nor a change of direction is left, whoever wrote it."""
    data = page_data([failed_run(text=HOSTILE), good_run()], LAUNCH + 1000)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    found = [line for text in texts_in(data) for line in text.split("\n")]
    assert [text for text in found if not text.isprintable()] == []
    assert len([text for text in found if r"\u2028\u202eevil" in text]) > 10


def test_the_timeline_has_attempts_nodes_ranks_and_events() -> None:
    """A bar for each node and rank in each attempt, which ends as its events say."""
    run = failed_run()
    timeline = only(run)["timeline"]
    assert [node["name"] for node in timeline["nodes"]] == ["controller", "a", "b"]
    assert [node["ranks"] for node in timeline["nodes"]] == [[], [0, 1], [2, 3]]
    assert [(each["number"], each["from"]) for each in timeline["attempts"]] == [(0, 1), (1, 306)]
    assert "rank 3 on b exited with 1" in timeline["attempts"][0]["text"]
    bars = timeline["bars"]
    states = dict(zip(zip(bars["attempt"], bars["rank"], strict=True), bars["state"], strict=True))
    assert states[0, 3] == states[1, 3] == FAILED
    assert states[0, 0] == states[1, 2] == STOPPED
    node_bars = dict(zip(zip(bars["node"], bars["rank"], strict=True), bars["state"], strict=True))
    assert (node_bars[1, -1], node_bars[2, -1]) == (STOPPED, FAILED)
    shown = timeline["events"]
    levels = {
        (r, a): lev
        for r, a, lev in zip(shown["rank"], shown["attempt"], shown["level"], strict=True)
    }
    assert [levels[rank, 1] for rank in range(4)] == [event_texts.STOPPED] * 3 + [event_texts.BAD]
    assert len(timeline["events"]["t"]) == len(run.events)
    assert timeline["left_out"] == 0


@pytest.mark.parametrize(
    ("exited", "stop", "expected"),
    [
        (events.RankExited(0, 1, exception="ConnectionError: closed"), StopCause.PEER, STOPPED),
        (events.RankExited(0, signal=9), StopCause.USER, STOPPED),
        (events.RankExited(0, 1), StopCause.LOCAL, FAILED),
        (events.RankExited(0), StopCause.SCHEDULER, STOPPED),
        (events.RankExited(0), None, UNSEEN),
        (events.RankExited(0, signal=15), None, FAILED),
    ],
)
def test_who_was_stopped_and_who_failed(
    exited: events.RankExited, stop: StopCause | None, expected: int
) -> None:
    """The host's own clock tells: what ended after its stop, whatever other clocks say."""
    bodies = [events.RankStarted(0, 7), *([events.Stopping("no", stop)] if stop else []), exited]
    happened = tuple(
        Event("r", "a", 0, n, LAUNCH + n, float(n), body) for n, body in enumerate(bodies)
    )
    run = RunData("r", "/r", plans=good_run().plans, events=happened)
    assert only(run)["timeline"]["bars"]["state"] == [expected]
    before = (*happened[:-1], replace(happened[-1], mono=0.5))
    if stop and exited.code is not None:
        assert only(replace(run, events=before))["timeline"]["bars"]["state"] == [FAILED]
