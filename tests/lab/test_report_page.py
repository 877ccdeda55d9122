"""The page of `report`, in a real browser: what it shows, runs, and how it is used."""

from __future__ import annotations

import json
import re
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runner.core.history.run_data import RunData
from runner.ui.page import page_data, render_page
from tests.lab.browser import open_browser, open_page
from tests.lab.forkserver import RUNNER_ARGV
from tests.lab.launching import SECRET, USE_OF_SECRET, Launcher
from tests.lab.waiting import wait_until
from tests.page_runs import HOSTILE, LAUNCH, failed_run, good_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def written(tmp_path: Path, *runs: RunData) -> str:
    """The address of the page of these runs."""
    file = tmp_path / "report.html"
    file.write_text(render_page(page_data(runs, LAUNCH + 1000)))
    return file.as_uri()


def event_count(page: Page) -> int:
    text = page.locator("#events [role=status]").first.inner_text()
    found = re.search(r"of ([\d,]+) events", text)
    return int(found[1].replace(",", "")) if found else 0


@pytest.mark.promise(12)
def test_hostile_texts_are_shown_and_run_no_script(browser: Browser, tmp_path: Path) -> None:
    """In a log, a name, a value, an event, a metric and a traceback: as they are."""
    address = written(tmp_path, failed_run(text=HOSTILE), good_run())
    with open_page(browser, address, messages=("Content Security Policy",)) as page:
        for fold in page.locator("#logs details").all():
            fold.evaluate("fold => { fold.open = true; }")
        page.wait_for_selector("#logs details details pre")
        for fold in page.locator("#configuration > details, #events > details").all():
            fold.evaluate("fold => { fold.open = true; }")
        shown = HOSTILE.replace("\u2028", r"\u2028").replace("\u202e", r"\u202e")
        for section in ("#metrics", "#logs", "#configuration", "#events", ".failure", ".facts"):
            assert shown in page.locator(section).first.inner_text(), section
        assert page.evaluate("window.hacked") is None
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 3  # the data, uPlot, and ours
        # What the policy is for: a script that gets in, however, does not run.
        page.evaluate(
            "document.body.append(Object.assign(document.createElement('script'),"
            " { textContent: 'window.hacked = 2' }))"
        )
        page.evaluate(
            "document.body.insertAdjacentHTML('beforeend',"
            " '<img src=x onerror=\"window.hacked=3\">')"
        )
        page.wait_for_function("() => document.querySelector('img').complete")
        assert page.evaluate("window.hacked") is None


@pytest.mark.all
def test_keys_and_a_pointer_zoom_all_and_filters_find(browser: Browser, tmp_path: Path) -> None:
    """Tab reaches everything; events, logs and keys are found by their words."""
    with open_page(browser, written(tmp_path, failed_run())) as page:
        everything = event_count(page)
        active = "(each => [...each.classList, each.tagName].join(' '))(document.activeElement)"
        reached = set()
        for _ in range(80):
            page.keyboard.press("Tab")
            reached.add(page.evaluate(active))
        assert {"skip A", "theme BUTTON", "timeline DIV", "plot DIV", "CODE", "PRE"} <= reached
        page.get_by_label("in the visible time").check()
        page.locator(".timeline").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert page.locator(".timeline-box [aria-live]").inner_text() == "a is open"
        page.keyboard.press("+")
        wait_until(lambda: event_count(page) < everything, "fewer events")
        page.keyboard.press("Escape")
        wait_until(lambda: event_count(page) == everything, "all events")
        over = page.locator("#load .plot .u-over").first
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        assert box
        page.mouse.move(box["x"] + 200, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 400, box["y"] + 50, steps=4)
        page.mouse.up()
        wait_until(lambda: event_count(page) < everything, "fewer events")
        over.dblclick()
        wait_until(lambda: event_count(page) == everything, "all events")
        page.get_by_label("Filter events of").fill("rank 3 exited")
        wait_until(lambda: event_count(page) == 2, "two events")
        page.get_by_label("Filter the configuration of").fill("task.args.lr")
        assert page.locator("#configuration tbody tr").count() == 1
        page.get_by_label("Filter logs of").fill("rank_3 err")
        fold = page.locator("#logs details")
        assert fold.count() == 1
        fold.locator("summary").press("Enter")
        assert "step 2" in fold.locator("pre").inner_text()


def data_of(file: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', file.read_text())
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.mark.all
def test_the_verb_writes_the_page_of_runs(on_lab: Launcher) -> None:
    """Of the latest run, of several, where it is told to; the commands in it run as printed."""
    refused = on_lab("report")
    assert (refused.code, "no run was launched from this folder" in refused.err) == (2, True)
    on_lab.env["TOKEN"] = SECRET
    words = ("cluster=lab", "cluster.only=[node1]", "run_id=first-run", *USE_OF_SECRET)
    done = on_lab.run_ranks("print=up exit=3", *words)
    assert done.code == 1, done
    told = on_lab("report")
    assert (told.code, told.err) == (0, ""), told
    file = on_lab.folder / "runs" / "first-run" / "report.html"
    assert told.out.startswith(f"run first-run: {file}, ")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert SECRET not in file.read_text()
    (run,) = data_of(file)["runs"]
    assert "told ***" in json.dumps(run["timeline"]), "the secret was in what was told"
    assert (run["state"], run["failure"]["title"]) == ("failed", "rank 0 on node1 exited with 3")
    assert "up\n" in "".join(log["text"] for log in run["logs"])
    assert run["timeline"]["bars"]["rank"] == [0, -1]
    for _, command in run["commands"]:
        typed = shlex.split(command)
        assert typed[: len(RUNNER_ARGV)][-2:] == ["-m", "runner"], typed
        again = on_lab(*typed[typed.index("runner") + 1 :])
        expected = 1 if "rerun=" in command else 0
        assert again.code == expected, again
    last = on_lab("report", "first-run", "latest")
    assert last.code == 0, last
    (both,) = on_lab.folder.glob("runs/report-first-run-*.html")
    assert len(data_of(both)["runs"]) == 2
