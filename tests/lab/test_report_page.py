"""The page of `report`, in a real browser: what it shows, runs, and how it is used."""

from __future__ import annotations

import html
import re
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runner.core.history import RunData
from runner.ui.page.page import render_page
from tests.lab.browser import open_browser, open_page
from tests.lab.launching import SECRET, USE_OF_SECRET, Launcher
from tests.lab.waiting import wait_until
from tests.page_runs import HOSTILE, failed_run, good_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def written(tmp_path: Path, *runs: RunData) -> str:
    """The address of the page of these runs."""
    file = tmp_path / "report.html"
    file.write_text(render_page(runs))
    return file.as_uri()


@pytest.mark.promise(12)
def test_hostile_texts_are_shown_and_run_no_script(browser: Browser, tmp_path: Path) -> None:
    """In a log, a name, a value, an event, a metric and a traceback: as they are."""
    address = written(tmp_path, failed_run(text=HOSTILE), good_run())
    with open_page(browser, address, messages=("Content Security Policy",)) as page:
        for fold in page.locator("details").all():
            fold.evaluate("fold => { fold.open = true; }")
        shown = HOSTILE.replace("\u2028", r"\u2028").replace("\u202e", r"\u202e")
        for place in (".failure", ".charts", ".timeline", ".pairs", "details pre"):
            assert shown in " ".join(page.locator(place).all_inner_texts()), place
        assert page.evaluate("window.hacked") is None
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 2  # the data, and ours with uPlot
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


def test_dragging_in_a_chart_zooms_all_of_its_kind(browser: Browser, tmp_path: Path) -> None:
    """A double click shows everything again; on a phone nothing is wider than the screen."""
    with open_page(browser, written(tmp_path, failed_run())) as page:
        plots = page.locator("[data-charts=load] .u-wrap")

        def drawings() -> list[str]:
            canvases = page.locator("[data-charts=load] canvas")
            found: list[str] = canvases.evaluate_all("all => all.map(each => each.toDataURL())")
            return found

        before = drawings()
        assert len(before) == plots.count() == 3
        over = plots.first.locator(".u-over")
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        assert box
        page.mouse.move(box["x"] + 100, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 200, box["y"] + 50, steps=4)
        page.mouse.up()
        wait_until(lambda: not {*drawings()} & {*before}, "every chart of the load is zoomed")
        over.dblclick()
        wait_until(lambda: drawings() == before, "everything is shown again")
        page.set_viewport_size({"width": 360, "height": 700})
        wide = "() => document.documentElement.scrollWidth > innerWidth"
        wait_until(lambda: not page.evaluate(wide), "the page is as wide as a phone")


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
    assert told.out.endswith(f"\n  {file.as_uri()}\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert SECRET not in file.read_text()
    page = file.read_text()
    assert "told ***" in page, "the secret was in what was told"
    assert "<h2>rank 0 on node1 exited with 3</h2>" in page
    for text in re.findall(r": <code>(.* -m runner .*)</code>", page):
        typed = shlex.split(html.unescape(text))
        again = on_lab(*typed[typed.index("runner") + 1 :])
        expected = 1 if "rerun=" in text else 0
        assert again.code == expected, again
    last = on_lab("report", "first-run", "latest")
    assert last.code == 0, last
    (both,) = on_lab.folder.glob("runs/report-first-run-*.html")
    assert "What differs" in both.read_text()
