"""The page of runs: one file in which no text is a command, and what it says of them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from runner.core.history import RunData, Series
from runner.core.wire import events
from runner.core.wire.events import Event
from runner.core.wire.states import Reason, State
from runner.ui.page.page import event_text, render_page, timeline
from tests.golden.builders import own, told
from tests.page_runs import HOSTILE, LAUNCH, TRACEBACK, failed_run, good_run


def charts_of(page: str) -> dict[str, list[dict[str, Any]]]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert found
    data: dict[str, list[dict[str, Any]]] = json.loads(found[1])
    return data


@pytest.mark.promise(12)
def test_the_policy_names_each_script_and_style_by_its_hash() -> None:
    """And allows nothing else; nothing in the markup has an address or a handler."""
    page = render_page([failed_run(text=HOSTILE)], before=good_run())
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    blocks = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", page, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        digest = base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()
        assert f"&#39;sha256-{digest}&#39;" in policy[1]
    assert policy[1].startswith("default-src &#39;none&#39;; ")
    assert "unsafe" not in policy[1]
    markup = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", page, flags=re.DOTALL)
    markup = re.sub(r"&lt;.*", "", markup)
    assert re.findall(r"\s(?:src|href|on\w+|style)=\S*", markup) == [' href="data:,">']


def test_it_says_why_a_run_failed_and_what_differs_from_the_run_before() -> None:
    failed = failed_run()
    config = {**failed.config, "lost_s": 15, "seed": 15}
    page = render_page([replace(failed, config=config)], before=good_run())
    assert "<h2>rank 3 on b exited with 1</h2>" in page
    assert "RuntimeError: CUDA error: an illegal memory access" in page
    order = ["why", "<h2>Metrics", "differs from the run before", "<h2>Nodes<", "Load", "Logs"]
    places = [page.index(text) for text in order]
    assert places == sorted(places)
    assert re.search(r"task.args.lr</th><td>0.02</td><td>0.1</td>", page)
    set_keys = page[page.index("Keys that were set") : page.index("whole configuration")]
    assert "task.args.name" in set_keys
    assert "seed" in set_keys
    assert "lost_s" not in set_keys


def test_a_run_that_hangs_shows_where_it_waits() -> None:
    page = render_page([replace(failed_run(), verdict=None, ended_at=None)])
    shown = page[page.index("<h2>No rank made progress any more</h2>") : page.index("<dl>")]
    assert TRACEBACK[-1] in shown


def test_charts_have_a_line_for_each_run() -> None:
    """Over steps, where a later attempt replaces what an earlier one did."""
    data = charts_of(render_page([failed_run(), good_run()]))
    loss = data["metrics"][0]
    assert (loss["title"], loss["x"]) == ("loss", "step")
    assert [line["label"] for line in loss["lines"]] == [failed_run().run_id, good_run().run_id]
    assert [len(line["table"][0]) for line in loss["lines"]] == [200, 200]
    alone = charts_of(render_page([failed_run()]))["load"][0]
    names = ["a GPU 0", "a GPU 1", "b GPU 0", "b GPU 1"]
    assert [line["label"] for line in alone["lines"]] == names


def test_load_of_many_hosts_is_their_spread_and_of_several_runs_their_mean() -> None:
    """A host counts as long as it has samples; a time that nobody knows is a gap."""
    sources = {f"n{n}": Series((LAUNCH, LAUNCH + 10), (n, n)) for n in range(8)}
    sources["late"] = Series((LAUNCH + 30, LAUNCH + 30), (50.0, None))
    run = RunData("r", "/r", launched_at=LAUNCH, loads={"CPU": sources})
    lines = charts_of(render_page([run]))["load"][0]["lines"]
    assert [line["label"] for line in lines] == ["least", "mean", "most"]
    assert [line["table"][1][0] for line in lines] == [0.0, 3.5, 7.0]
    times, values = lines[2]["table"]
    assert {value for at, value in zip(times, values, strict=True) if 11 < at < 29} == {None}
    both = charts_of(render_page([run, replace(run, run_id="s")]))["load"][0]["lines"]
    assert [(line["label"], line["table"][1][0]) for line in both] == [("r", 3.5), ("s", 3.5)]


@pytest.mark.parametrize(
    ("exited", "stop", "expected"),
    [
        (events.ProgramExited(0), None, "succeeded"),
        (events.ProgramExited(1), told("no"), "stopped"),
        (events.ProgramExited(1), own("a", "no"), "failed"),
        (events.ProgramExited(), None, "unseen"),
        (events.ProgramExited(signal=9), None, "failed"),
        (events.HostLost("silent"), None, "failed"),
        (events.Ended(State.STOPPED), None, "stopped"),
    ],
)
def test_who_was_stopped_and_who_failed(
    exited: events.EventBody, stop: Reason | None, expected: str
) -> None:
    bodies = [events.ProgramStarted(7), *([events.Stopping(stop)] if stop else []), exited]
    happened = tuple(
        Event("r", "a", 0, n, LAUNCH + n, float(n), body) for n, body in enumerate(bodies)
    )
    run = replace(good_run(), events=happened)
    assert timeline(run).rows["a"].bars[0].state == expected


def test_the_timeline_has_attempts_nodes_and_the_ranks_that_failed() -> None:
    drawn = timeline(failed_run())
    bars = {node: [bar.state for bar in row.bars.values()] for node, row in drawn.rows.items()}
    assert bars == {"a": ["stopped", "stopped"], "b": ["failed", "failed"]}
    assert drawn.rows["a"].marks == []
    marked = [event_text(event) for event in drawn.rows["b"].marks]
    assert marked == [f"rank 3 exited with 1, {TRACEBACK[-1]}"] * 2
    assert sum(is_fault for _, is_fault in drawn.events) == 2
