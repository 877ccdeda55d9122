"""The page of runs: one file in which no text is a command, and what it says of them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

import pytest

from runner.core.history.run_data import RunData
from runner.core.protocol import events
from runner.core.protocol.events import Event, StopCause
from runner.ui.page import render_page
from runner.ui.page.timeline import FAILED, STOPPED, SUCCEEDED, UNSEEN, timeline
from tests.page_runs import HOSTILE, LAUNCH, failed_run, good_run


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
    assert len(blocks) == 4
    for block in blocks:
        digest = base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()
        assert f"&#39;sha256-{digest}&#39;" in policy[1]
    assert policy[1].startswith("default-src &#39;none&#39;; ")
    assert "unsafe" not in policy[1]
    markup = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", page, flags=re.DOTALL)
    markup = re.sub(r"&lt;.*", "", markup)
    assert re.findall(r"\s(?:src|href|on\w+|style)=\S*", markup) == [' href="data:,">']


def test_it_says_why_a_run_failed_and_what_differs_from_the_run_before() -> None:
    page = render_page(
        [failed_run()],
        before=good_run(),
        defaults={"task.script": "train.py", "task.args.name": "other"},
    )
    assert "<h2>rank 3 on b exited with 1</h2>" in page
    assert "RuntimeError: CUDA error: an illegal memory access" in page
    order = ["why", "Metrics", "differs from the run before", "Nodes and ranks", "Load", "Logs"]
    places = [page.index(text) for text in order]
    assert places == sorted(places)
    assert re.search(r"task.args.lr</th><td>0.02</td><td>0.1</td>", page)
    set_keys = page[page.index("Keys that were set") : page.index("whole configuration")]
    assert "task.args.name" in set_keys
    assert "task.script" not in set_keys


def test_charts_have_a_line_for_each_run() -> None:
    """Over steps, where a later attempt replaces what an earlier one did."""
    data = charts_of(render_page([failed_run(), good_run()]))
    loss = data["metrics"][0]
    assert (loss["title"], loss["x"]) == ("loss", "step")
    assert loss["labels"] == [failed_run().run_id, good_run().run_id]
    assert [len(steps) for steps, _ in loss["tables"]] == [200, 200]
    alone = charts_of(render_page([failed_run()]))["load"][0]
    assert alone["labels"] == ["a GPU 0", "a GPU 1", "b GPU 0", "b GPU 1"]


@pytest.mark.parametrize(
    ("exited", "stop", "expected"),
    [
        (events.RankExited(0, 0), None, SUCCEEDED),
        (events.RankExited(0, 1, exception="ConnectionError: closed"), StopCause.PEER, STOPPED),
        (events.RankExited(0, signal=9), StopCause.USER, STOPPED),
        (events.RankExited(0, 1), StopCause.LOCAL, FAILED),
        (events.RankExited(0), StopCause.SCHEDULER, STOPPED),
        (events.RankExited(0), None, UNSEEN),
        (events.RankExited(0, signal=11), None, FAILED),
    ],
)
def test_who_was_stopped_and_who_failed(
    exited: events.RankExited, stop: StopCause | None, expected: str
) -> None:
    bodies = [events.RankStarted(0, 7), *([events.Stopping("no", stop)] if stop else []), exited]
    happened = tuple(
        Event("r", "a", 0, n, LAUNCH + n, float(n), body) for n, body in enumerate(bodies)
    )
    run = RunData("r", "/r", plans=good_run().plans, events=happened)
    rows = timeline(run, LAUNCH, LAUNCH + 10).rows
    assert [bar.state for row in rows for bar in row.bars] == [expected]


def test_the_timeline_has_attempts_nodes_and_ranks() -> None:
    drawn = timeline(failed_run(), LAUNCH, LAUNCH + 600)
    assert [row.name for row in drawn.rows] == ["a", "b"]
    assert [title for _, title in drawn.attempts] == ["attempt 2"]
    titles = [bar.title for row in drawn.rows for bar in row.bars if bar.state == FAILED]
    assert sorted(title.partition(":")[0] for title in titles) == [
        "b, attempt 1",
        "b, attempt 2",
        "rank 3 on b, attempt 1",
        "rank 3 on b, attempt 2",
    ]
