"""The page of a run as it goes on: `report --serve`, on real hosts and in a real browser."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.browser import open_browser, open_page
from tests.lab.lab import Lab
from tests.lab.launching import SECRET, USE_OF_SECRET, Controller, Launcher
from tests.lab.waiting import wait_until, wait_until_idle

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NODES = ("node1", "node2")
QUICKLY = ("lost_s=2", "cluster.ssh.connect_timeout=1", "grace_s=1")
STEP = 'print={{"step":{0},"steps":3,"loss":0.5}}'


class Served:
    """A page that is being served."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        controller.until(lambda: "Ctrl-C" in controller.out, "the address")
        self.url = controller.out.splitlines()[0]
        self.port = int(re.findall(r":(\d+)/", self.url)[0])

    def path(self, place: str) -> str:
        """The path of something else, with the token."""
        return f"/{place}?{self.url.partition('?')[2]}"

    @contextmanager
    def get(self, path: str) -> Iterator[HTTPResponse]:
        """Ask for something."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request("GET", path)
            yield connection.getresponse()

    def data(self, place: str = "") -> Any:
        """What the page draws."""
        with self.get(self.path(f"{place}data.json")) as answer:
            return json.load(answer)

    def run(self) -> Any:
        """What it draws of its run."""
        return self.data()["runs"][0]

    def step(self) -> int | None:
        """How far the run is."""
        progress = self.run()["progress"]
        return progress and int(progress["step"])

    def sampled(self) -> set[str]:
        """The nodes that have samples of more than one moment."""
        load = self.run()["load"]
        sources = load["sources"] if load and len(load["t"]) > 1 else []
        return {each["name"] for each in sources}

    def until_step(self, step: int) -> None:
        """Wait until the page shows this step."""
        self.controller.until(lambda: self.step() == step, f"step {step}")

    def event(self) -> Any:
        """The first event of a new stream."""
        with self.get(self.path("events")) as stream:
            line = next(line for line in stream if line.startswith(b"data: "))
        return json.loads(line[6:])

    def resources(self) -> tuple[int, int]:
        """The number of threads and of descriptors of its process."""
        place = Path("/proc", str(self.controller.process.pid))
        return len([*(place / "task").iterdir()]), len([*(place / "fd").iterdir()])


@pytest.fixture
def user(lab: Lab, on_lab: Launcher) -> Launcher:
    """A user with two of the lab's hosts."""
    lab.write_cluster(on_lab.conf, names=NODES)
    return on_lab


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests of a worker."""
    with open_browser() as opened:
        yield opened


def test_a_run_is_followed_through_a_relaunch_and_a_lost_connection(
    user: Launcher, lab: Lab, tmp_path: Path
) -> None:
    """Then to its end, which is on record like that of any run that was followed."""
    fails, ends = tmp_path / "fails", tmp_path / "ends"
    words = [STEP.format(1), f"wait={fails}", f"once=0:{tmp_path}/failed", STEP.format(2)]
    done = user(
        *("cluster=lab", "detach=true", "relaunch.max=1", "relaunch.backoff_s=0.2", *QUICKLY),
        *user.rank_overrides(*words, f"wait={ends}", STEP.format(3)),
    )
    assert done.code == 0, done
    served = Served(user.start("report", "--serve"))
    served.until_step(1)
    assert served.run()["is_on"]
    served.controller.until(lambda: served.sampled() >= {*NODES}, "samples of both hosts")
    fails.touch()
    served.until_step(2)
    with lab.cut_off("node2"):
        served.controller.until(lambda: "node2" in served.event()["note"], "the silence of node2")
        assert "not heard of node2" in served.controller.out
        assert served.step() == 2
    served.controller.until(lambda: not served.event()["note"], "node2 again")
    with lab.cut_off():
        served.controller.until(lambda: "node[1-2]" in served.event()["note"], "silence of all")
    served.controller.until(lambda: not served.event()["note"], "both again")
    ends.touch()
    served.controller.until(lambda: served.event()["ended"], "the end")
    served.controller.until(lambda: not served.run()["is_on"], "the page of the end")
    served.until_step(3)
    run = served.run()
    assert (run["is_on"], run["state"]) == (False, "succeeded")
    assert "the run has ended: succeeded" in served.controller.out
    folder = user.folder / "runs" / done.folder.name
    assert json.loads((folder / "result.json").read_text())["state"] == "succeeded"
    assert user("why").code == 0
    served.controller.send(signal.SIGINT)
    ended = served.controller.wait(10)
    assert (ended.code, ended.err) == (0, "")
    assert len(ended.out.splitlines()) < 15, ended
    wait_until_idle(lab, 40)


def test_a_launch_that_writes_the_record_is_followed_from_beside_it(
    user: Launcher, tmp_path: Path
) -> None:
    """Nothing is taken from it: its record is whole, and Ctrl-C here ends the page alone."""
    go = tmp_path / "go"
    ranks = user.rank_overrides(STEP.format(1), f"wait={go}", STEP.format(3))
    launch = user.start("cluster=lab", "grace_s=1", *ranks)
    launch.until_printed('"step":1', 2)
    served, other = Served(user.start("report", "--serve")), Served(user.start("report", "--serve"))
    served.until_step(1)
    taken = user("report", "--serve", "--port", str(served.port))
    assert taken.code == 3
    assert f"port {served.port} of 127.0.0.1 is taken" in taken.err
    other.controller.send(signal.SIGTERM)
    assert other.controller.wait(10).code == 143
    go.touch()
    done = launch.wait()
    assert done.code == 0, done
    served.controller.until(lambda: served.event()["ended"], "the end")
    served.until_step(3)
    assert done.result["state"] == "succeeded"
    assert "is being written" not in done.err
    with served.get(served.path("")[:-1]) as answer:
        assert answer.status == 403


TOLD = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "403", "ERR_EMPTY_RESPONSE")
"""What a browser says of a server that has ended."""


def test_a_browser_follows_the_runs_of_a_cluster(
    user: Launcher, browser: Browser, tmp_path: Path
) -> None:
    """It draws what is new without a reload, and says so when the server has ended."""
    go = tmp_path / "go"
    ranks = user.rank_overrides(STEP.format(1), f"wait={go}", STEP.format(2), f"wait={go}-on")
    done = user("cluster=lab", "detach=true", "grace_s=1", *ranks)
    run_id = done.folder.name
    served = Served(user.start("report", "--serve", "--cluster", "lab"))
    with open_page(browser, served.url, messages=TOLD) as viewer:
        viewer.click(f"text={run_id}")
        viewer.wait_for_selector("text=step 1 of 3")
        go.touch()
        viewer.wait_for_selector("text=step 2 of 3")
        served.controller.kill()
        viewer.wait_for_selector(".live >> text=no answer")
        again = Served(
            user.start("report", "--serve", "--cluster", "lab", "--port", str(served.port))
        )
        viewer.wait_for_selector(".live >> text=started again")
        assert again.url != served.url
    assert user("stop", "--run", run_id).code == 0


def test_ten_viewers_and_a_hundred_reloads_leave_nothing_behind(
    user: Launcher, browser: Browser
) -> None:
    """The server has as many threads and descriptors as before; a secret is in no page."""
    user.env["TOKEN"] = SECRET
    ranks = user.rank_overrides(STEP.format(3))
    assert user("cluster=lab", "grace_s=1", *USE_OF_SECRET, *ranks).code == 0
    served = Served(user.start("report", "--serve"))
    for place in ("", "data.json"):
        with served.get(served.path(place)) as answer:
            text = answer.read().decode()
        assert ("told ***" in text, SECRET in text) == (True, False), place
    with ExitStack() as stack:
        viewers = [
            stack.enter_context(open_page(browser, served.url, messages=TOLD)) for _ in range(10)
        ]
        before = served.resources()
        for _ in range(100):
            viewers[0].reload(wait_until="domcontentloaded")
        for viewer in viewers:
            viewer.wait_for_selector(".live >> text=succeeded")
        settled = (before[0] + 3, before[1] + 6)  # the requests of this moment
        wait_until(
            lambda: all(a <= b for a, b in zip(served.resources(), settled, strict=True)),
            f"{before} threads and descriptors again",
            detail=served.resources,
        )
        served.controller.send(signal.SIGINT)
        viewers[1].wait_for_selector(".live >> text=was stopped")
    assert served.controller.wait(10).code == 0
