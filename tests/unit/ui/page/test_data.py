"""Data of a page: what it says of runs, how much of it there is, and that nothing hides in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from runner.core.history.run_data import RunData, Series
from runner.core.protocol import events
from runner.core.protocol.events import Event, StopCause
from runner.ui.page import event_texts, page_data
from runner.ui.page.columns import series_columns
from runner.ui.page.timeline import FAILED, ON, STOPPED, SUCCEEDED, UNSEEN
from tests.page_runs import HOSTILE, LAUNCH, failed_run, good_run


def only(run: RunData) -> dict[str, Any]:
    """The data of one run."""
    (found,) = page_data([run], LAUNCH + 1000)["runs"]
    assert isinstance(found, dict)
    return found


def texts_in(data: object) -> Iterator[str]:
    """Every text in it."""
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


def test_a_failure_is_told() -> None:
    """Who, why, what to do, and the traceback."""
    failure = only(failed_run())["failure"]
    assert failure["title"] == "rank 3 on b exited with 1"
    assert (failure["meaning"], failure["remedy"]) == ("a kernel read outside", "plain")
    assert failure["text"].startswith("step 199\nTraceback (most recent call last):\n")
    assert failure["others"] == "3 ranks failed as a consequence"


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


def test_bars_of_what_is_on_or_was_not_seen_to_end() -> None:
    """They reach to the last that is known."""
    good = good_run()
    assert set(only(good)["timeline"]["bars"]["state"]) == {SUCCEEDED}
    starts = tuple(e for e in good.events if isinstance(e.body, events.RankStarted))
    unseen = replace(good, events=starts)
    assert set(only(unseen)["timeline"]["bars"]["state"]) == {UNSEEN}
    running = only(replace(unseen, verdict=None, ended_at=None))["timeline"]
    assert set(running["bars"]["state"]) == {ON}
    assert set(running["bars"]["to"]) == {running["end"]}


def test_a_long_series_keeps_its_peaks() -> None:
    """The extremes of what a point stands for are beside it."""
    values = tuple(float(n == 777) for n in range(1000))
    times = tuple(LAUNCH + n for n in range(1000))
    columns = series_columns(Series(times, tuple(range(1000)), values), LAUNCH, 100)
    assert {len(columns[name]) for name in ("t", "s", "v", "lo", "hi")} == {100}
    assert max(v for v in columns["hi"] if v is not None) == 1
    assert columns["t"][-1] == 999


def test_load_is_the_mean_over_gpus_with_the_extremes() -> None:
    """For all nodes, each node and each GPU."""
    load = only(failed_run())["load"]
    names = [source["name"] for source in load["sources"]]
    assert names == ["all nodes", "a", "b", "a GPU 0", "a GPU 1", "b GPU 0", "b GPU 1"]
    busy = load["sources"][1]["figures"]["gpu.utilization"]
    own = [load["sources"][n]["figures"]["gpu.utilization"]["v"] for n in (3, 4)]
    assert busy["v"][50] == pytest.approx((own[0][50] + own[1][50]) / 2, rel=1e-4)
    assert (busy["lo"][50], busy["hi"][50]) == (min(own[0][50], own[1][50]), own[0][50])
    assert load["throttled"][0] == ["a GPU 0", 50, 90, "power"]


def test_differences_of_two_runs() -> None:
    """What came out in any case, what was set only where it differs; one run has none."""
    rows = {row["name"]: row for row in page_data([failed_run(), good_run()])["differences"]}
    assert rows["state"]["values"] == ["failed", "succeeded"]
    assert rows["task.args.lr"]["values"] == ["0.1", "0.02"]
    assert rows["last step"]["differs"] is False
    assert rows["cluster.nodes.a.host"]["values"] == ["10.0.0.1", "-"]
    assert "task.script" not in rows
    assert page_data([good_run()])["differences"] == []
