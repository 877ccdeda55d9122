"""The page of `report`, in a real browser: what it shows, runs, and how it is used."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from runner.control.history.run_reader import read_run
from runner.core.history.run_data import RunData
from runner.ui.page import LiveAddress, page_data, render_page
from runner.ui.page.run_list import render_list
from tests.big_record import write_big_record
from tests.lab.browser import open_browser, open_page
from tests.lab.forkserver import RUNNER_ARGV
from tests.lab.launching import ROOT, SECRET, USE_OF_SECRET, Launcher, Result
from tests.page_runs import HOSTILE, LAUNCH, failed_run, good_run, running_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests of a worker."""
    with open_browser() as opened:
        yield opened


def written(tmp_path: Path, *runs: RunData) -> str:
    """The address of the page of these runs."""
    file = tmp_path / "report.html"
    file.write_text(render_page(page_data(runs, LAUNCH + 1000)))
    return file.as_uri()


def event_count(page: Page) -> int:
    """How many events the table has, as its filters are."""
    text = page.locator("#events [role=status]").first.inner_text()
    found = re.search(r"of ([\d,]+) events", text)
    return int(found[1].replace(",", "")) if found else 0


def wait_for_events(page: Page, condition: str) -> None:
    """Return once the number of events in the table is so."""
    page.wait_for_function(
        """condition => {
          const text = document.querySelector("#events [role=status]").textContent;
          const count = Number((/of ([\\d,]+) events/.exec(text) || [0, "0"])[1].replace(",", ""));
          const [sign, number] = condition.split(" ");
          return sign === "=" ? count === Number(number) : count < Number(number);
        }""",
        arg=condition,
    )


def test_hostile_texts_are_shown_and_run_no_script(browser: Browser, tmp_path: Path) -> None:
    """In a log, a name, a value, a note, an event, a metric and a traceback: as they are."""
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
        assert page.locator("script").count() == 4
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


@pytest.mark.parametrize("width", [1280, 390])
def test_themes_and_widths(browser: Browser, tmp_path: Path, width: int) -> None:
    """Dark and light as the system has it or as it is chosen; nothing is wider than a phone."""
    address = written(tmp_path, failed_run(text=HOSTILE), good_run())
    colours: dict[str, str] = {}
    themes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for theme in themes:
        with open_page(browser, address, width=width, theme=theme) as page:
            colours[theme] = background(page)
            page.locator("#metrics").scroll_into_view_if_needed()
            page.locator("#metrics .u-over").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.get_by_role("button", name="Switch between dark and light").click()
            colours[f"switched {theme}"] = background(page)
    assert colours["light"] == colours["switched dark"] != colours["dark"]
    assert colours["dark"] == colours["switched light"]


def test_the_ticks_of_an_axis_differ(browser: Browser) -> None:
    """They have the digits for it, one prefix on an axis, and no more than that."""
    functions = (ROOT / "runner" / "ui" / "page" / "assets" / "dom.js").read_text()
    with contextlib.closing(browser.new_page()) as page:

        def ticks(values: str, unit: str) -> object:
            made = f"amounts([{values}], '{unit}')"
            return page.evaluate(f"(() => {{ {functions} return {made}; }})()")

        assert ticks("1137e6, 1137.05e6, 1137.1e6", "B") == ["1.137 GB", "1.13705 GB", "1.1371 GB"]
        assert ticks("0, 5e8, 1e9", "B/s") == ["0 GB/s", "0.5 GB/s", "1 GB/s"]
        assert ticks("300.00001, 300.00002", "W") == ["300.00001 W", "300.00002 W"]
        assert ticks("20000, 20000.2, 123456", "") == ["20,000", "20,000.2", "123,456"]
        days = page.evaluate(
            f"(() => {{ {functions} return [0, 10].map((s) => tickText(172800 + s, 10)); }})()"
        )
        assert len(set(days)) == 2


def test_the_list_of_runs_has_lines_of_few_words(browser: Browser, tmp_path: Path) -> None:
    """Age and progress do not wrap on a laptop; on a phone, nothing scrolls sideways."""
    progress = {"step": 1200, "steps": 20000, "rate": 812.4, "unit": "it/s", "left_s": 4000}
    run = {
        **{"id": "1114-2213-digits-65a3", "task": "digits " * 9, "owner": "ada@laptop"},
        **{"state": "stopped", "is_on": False, "age": "12 h 05 m ago", "nodes": "2"},
        **{"gpus": 8, "attempt": 1, "progress": progress},
    }
    file = tmp_path / "list.html"
    data = {"made_at": LAUNCH, "cluster": "lab", "runs": [run], "omitted": ""}
    file.write_text(render_list(data, LiveAddress("t0ken")))
    for width in (1280, 390):
        with open_page(browser, file.as_uri(), width=width, messages=("",)) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            age = (
                page.locator("tbody td")
                .nth(4)
                .evaluate(
                    """cell => {
                  const range = document.createRange();
                  range.selectNodeContents(cell);
                  return range.getClientRects().length;
                }"""
                )
            )
            assert age == 1
            progress_height = page.locator("td .progress").evaluate("each => each.clientHeight")
            assert progress_height < 50  # the bar and one line
            region = page.locator(".scroll-x")
            needs = region.evaluate("each => each.scrollWidth - each.clientWidth")
            assert needs == 0


def test_on_a_phone_the_links_scroll_and_the_message_is_below(browser: Browser) -> None:
    """A word about the server takes no room from them."""
    with (
        serving() as (server, address),
        open_page(browser, address, width=390, messages=("ERR_",)) as page,
    ):
        server.change(None)
        page.wait_for_function(
            "() => document.querySelector('.live').textContent.includes('stopped')"
        )
        links, told = page.locator(".top nav").bounding_box(), page.locator(".live").bounding_box()
        assert links
        assert told
        assert links["width"] > 250
        assert told["y"] >= links["y"] + links["height"]
        last = page.locator(".top nav a").last
        last.focus()
        box = last.bounding_box()
        assert box
        assert box["x"] + box["width"] <= links["x"] + links["width"]
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def background(page: Page) -> str:
    """The colour of the page, and that of its canvas, which is drawn."""
    page.wait_for_function("() => document.querySelector('.timeline canvas').width > 0")
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour


def test_keys_reach_and_do_everything(browser: Browser, tmp_path: Path) -> None:
    """Tab goes everywhere; in a timeline and in a chart, keys zoom what all of them show."""
    with open_page(browser, written(tmp_path, failed_run())) as page:
        everything = event_count(page)
        reached = set()
        for _ in range(80):
            page.keyboard.press("Tab")
            reached.add(
                page.evaluate(
                    "(each => [...each.classList, each.tagName].join(' '))(document.activeElement)"
                )
            )
        assert {"skip A", "theme BUTTON", "timeline DIV", "plot DIV", "CODE", "PRE"} <= reached
        page.get_by_label("in the visible time").check()
        timeline = page.locator(".timeline")
        timeline.focus()
        height = timeline.bounding_box()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        opened = timeline.bounding_box()
        assert height
        assert opened
        assert opened["height"] > height["height"]
        assert page.locator(".timeline-box [aria-live]").inner_text() == "a is open"
        page.keyboard.press("+")
        wait_for_events(page, f"< {everything}")
        page.keyboard.press("Escape")
        wait_for_events(page, f"= {everything}")
        page.locator("#metrics .plot").first.focus()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowUp")
        wait_for_events(page, f"< {everything}")
        page.keyboard.press("Shift+ArrowRight")
        page.wait_for_function(
            "() => document.querySelector('#metrics .readout').textContent.includes(': ')"
        )
        page.keyboard.press("Escape")
        wait_for_events(page, f"= {everything}")


def test_a_pointer_zooms_all_and_filters_find(browser: Browser, tmp_path: Path) -> None:
    """Dragged over a chart, double-clicked to see all; events, logs and keys by their words."""
    with open_page(browser, written(tmp_path, failed_run())) as page:
        everything = event_count(page)
        page.get_by_label("in the visible time").check()
        chart = page.locator("#load .plot").first
        chart.scroll_into_view_if_needed()
        over = chart.locator(".u-over")
        box = over.bounding_box()
        assert box
        page.mouse.move(box["x"] + 200, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 400, box["y"] + 50, steps=4)
        page.mouse.up()
        wait_for_events(page, f"< {everything}")
        over.dblclick()
        wait_for_events(page, f"= {everything}")
        page.get_by_label("Filter events of").fill("rank 3 exited")
        wait_for_events(page, "= 2")
        page.get_by_label("Severity").select_option("failures")
        assert "RuntimeError: CUDA error" in page.locator("#events table").inner_text()
        page.get_by_label("Filter the configuration of").fill("task.args.lr")
        assert page.locator("#configuration tbody tr").count() == 1
        page.get_by_label("Filter logs of").fill("rank_3 err")
        fold = page.locator("#logs details")
        assert fold.count() == 1
        fold.locator("summary").press("Enter")
        assert "step 2" in fold.locator("pre").inner_text()
        page.get_by_role("button", name="By step").click()
        page.get_by_label("Nodes of").select_option("b GPU 1")
        page.locator("#metrics .u-over").first.wait_for()


class Server:
    """Serves the page of a run that changes, as `report --serve` does."""

    def __init__(self) -> None:
        self.run = running_run()
        self.version = 1
        self.changed = threading.Condition()
        self.is_stopped = False
        self.fetches = self.refusals = 0

    def change(self, run: RunData | None) -> None:
        """Have another state of the run, or stop."""
        with self.changed:
            self.run, self.is_stopped = run or self.run, run is None
            self.version += 1
            self.changed.notify_all()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a request."""
        path = request.path.partition("?")[0]
        if path == "/events":
            self._send(request, "text/event-stream", b"")
            self._stream(request)
        elif path == "/data.json" and self.refusals:
            self.refusals -= 1
            request.send_error(503)
        elif path == "/data.json":
            self.fetches += 1
            self._send(request, "application/json", json.dumps(self.data()).encode())
        elif path == "/":
            page = render_page(self.data(), live=LiveAddress("t0ken"))
            self._send(request, "text/html", page.encode())
        else:
            request.send_error(404)

    def data(self) -> dict[str, Any]:
        """The data of now."""
        return page_data([self.run], LAUNCH + 1000)

    def _send(self, request: BaseHTTPRequestHandler, kind: str, body: bytes) -> None:
        request.send_response(200)
        request.send_header("Content-Type", kind)
        request.end_headers()
        request.wfile.write(body)

    def _stream(self, request: BaseHTTPRequestHandler) -> None:
        while not self.is_stopped:
            request.wfile.write(b'data: {"version": %d, "note": ""}\n\n' % self.version)
            with self.changed:
                self.changed.wait(timeout=1)
        request.wfile.write(b'data: {"stopped": true}\n\n')


@contextlib.contextmanager
def serving() -> Iterator[tuple[Server, str]]:
    """A server, and its address."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.answer(self)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{listener.server_port}/?token=t0ken"
        finally:
            server.change(None)
            listener.shutdown()
            thread.join()


def test_a_live_page_takes_what_is_new_and_stays_as_it_is(browser: Browser) -> None:
    """Zoom, filter, open folds and scroll; in the end it says that nothing comes any more."""
    with (
        serving() as (server, address),
        open_page(browser, address, messages=("ERR_", "503")) as page,
    ):
        state = page.locator(".live")
        page.wait_for_function("() => document.querySelector('.live').textContent === 'live'")
        assert "running" in page.locator("h2 .badge").inner_text()
        assert "step 120 of 200" in page.locator(".progress").inner_text()
        page.get_by_label("Filter logs of").fill("rank_3 err")
        page.locator("#logs summary").click()
        page.get_by_label("in the visible time").check()
        page.locator(".timeline").press("+")
        wait_for_events(page, f"< {len(server.run.events)}")
        zoomed = event_count(page)
        place = page.evaluate("scrollY")
        server.refusals = 1  # it is busy: the page asks again, of itself
        server.change(replace(server.run, step=150))
        page.wait_for_function(
            "() => document.querySelector('.progress').textContent.includes('step 150 of 200')"
        )
        assert page.locator("#logs details[open] pre").is_visible()
        assert page.get_by_label("Filter logs of").input_value() == "rank_3 err"
        assert event_count(page) == zoomed
        assert page.evaluate("scrollY") == place
        assert page.locator("#metrics .chart").count() == 1
        server.change(failed_run())
        page.wait_for_function(
            "() => document.querySelector('.live').textContent === 'the run has ended'"
        )
        assert page.locator(".failure").is_visible()
        assert page.locator("#metrics .chart").count() == 3
        server.change(None)
        page.wait_for_function(
            "() => document.querySelector('.live').textContent.includes('stopped')"
        )
        assert state.inner_text().startswith("the server was stopped")


@pytest.mark.all
@pytest.mark.slow
def test_a_big_run_opens_and_stays_usable(browser: Browser, tmp_path: Path) -> None:
    """1,000 ranks, a million lines of metrics, 10,000 events; figures: `benchmarks.report`."""
    write_big_record(tmp_path / "run")
    address = written(tmp_path, read_run(tmp_path / "run"))
    with open_page(browser, address) as page:
        assert page.evaluate("performance.now()") < 20_000
        assert event_count(page) == 10_000
        page.get_by_role("button", name="Show the ranks of all nodes").click()
        page.get_by_label("Filter events of").fill("rank 500 exited")
        wait_for_events(page, "= 1")
        page.get_by_label("Filter events of").fill("")
        page.get_by_label("in the visible time").check()
        page.locator(".timeline").press("+")
        wait_for_events(page, "< 10000")
        page.locator("#load .u-over").first.wait_for()


def data_of(file: Path) -> dict[str, Any]:
    """The data in a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', file.read_text())
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


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
    assert f"  {file.as_uri()}\n" in told.out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert SECRET not in file.read_text()
    (run,) = data_of(file)["runs"]
    assert "told ***" in json.dumps(run["timeline"]), "the secret was in what was told"
    assert (run["state"], run["failure"]["title"]) == ("failed", "rank 0 on node1 exited with 3")
    assert "up\n" in "".join(log["text"] for log in run["logs"])
    assert run["timeline"]["bars"]["rank"] == [0, -1]
    places = {key: place for key, _, place in run["config"]}
    lines = (on_lab.conf / "cluster" / "lab.yaml").read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if line.startswith("python:"))
    assert places["cluster.python"] == f"conf/cluster/lab.yaml:{number}"
    assert places["cluster.only"] == "command line: cluster.only=[node1]"
    assert places["cluster.ssh.connect_timeout"] == "default"
    assert {place.partition(":")[0] for place in places.values()} == {
        *("command line", "conf/cluster/lab.yaml", "default"),
        str(ROOT / "conf" / "rendezvous" / "static.yaml"),
    }
    origins = file.with_name("origins.json")
    assert stat.S_IMODE(origins.stat().st_mode) == 0o600
    assert list(json.loads(origins.read_text())) == list(places)
    planned = on_lab.run_ranks("print=up", *words[:2], "run_id=planned", "dry_run=true")
    assert planned.code == 0, planned
    assert not (on_lab.folder / "runs" / "planned").exists()
    for _, command in run["commands"]:
        again = run_command(on_lab, command)
        expected = 1 if "rerun=" in command else 0
        assert again.code == expected, again
    last = on_lab("report", "first-run", "latest")
    assert last.code == 0, last
    (both,) = on_lab.folder.glob("runs/report-first-run-*.html")
    assert len(data_of(both)["runs"]) == 2
    port = on_lab("report", "--port", "8000")
    assert port.code == 2
    assert port.err.endswith("report --serve --port 8000\n")
    cannot = on_lab("report", "first-run", "--out", "no/folder/x.html")
    assert cannot.code == 2
    assert cannot.err == (
        f"error: --out: cannot write {on_lab.folder}/no/folder/x.html: No such file or directory\n"
    )


def test_the_page_of_a_run_that_is_on(on_lab: Launcher) -> None:
    """It has what is here and says so; what it says comes next works then, too."""
    words = ("cluster=lab", "cluster.only=[node1]", "run_id=a-run", "detach=true", "grace_s=1")
    begun = on_lab.run_ranks("print=up sleep=600", *words)
    assert begun.code == 0, begun
    assert (on_lab.folder / "runs" / "a-run" / "origins.json").exists()
    told = on_lab("report")
    assert told.code == 0, told
    assert told.err.startswith("note: no end of a-run is on record here: ")
    (run,) = data_of(on_lab.folder / "runs" / "a-run" / "report.html")["runs"]
    assert (run["state"], run["is_on"]) == ("no end on record", True)
    by_verb = {shlex.split(command)[3]: command for _, command in run["commands"]}
    assert list(by_verb) == ["report", "attach", "why", "stacks", "stop"]
    assert shlex.split(by_verb["report"])[3:] == ["report", "a-run", "--serve"]
    assert run_command(on_lab, told.err.splitlines()[1].removeprefix("note: ")).code == 0
    for verb, code in (("why", 3), ("stacks", 0), ("stop", 0)):
        done = run_command(on_lab, by_verb[verb])
        assert done.code == code, done
    followed = run_command(on_lab, by_verb["attach"])
    assert "had ended" in followed.err, followed


def run_command(user: Launcher, command: str) -> Result:
    """Run what a page says, as it is typed."""
    words = shlex.split(command)
    assert words[: len(RUNNER_ARGV)][-2:] == ["-m", "runner"], words
    return user(*words[words.index("runner") + 1 :])
