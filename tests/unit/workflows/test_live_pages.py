"""What live pages are made of: the record of a run, and the list of the runs of a cluster."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from runner.core.errors import NotReady
from runner.core.model.metrics import RankProgress
from runner.ui.console.quiet import QuietConsole
from runner.ui.page.render import LiveAddress
from runner.ui.page.run_list import list_data, render_list
from runner.ui.reports.run_table import Row
from runner.workflows.live import cluster_pages, serve
from runner.workflows.live.cluster_pages import ClusterPages
from runner.workflows.live.document import Document, Status
from runner.workflows.live.page_server import Busy
from runner.workflows.live.run_page import RunSource
from tests.golden.builders import request

ADDRESS = LiveAddress("secret")
ROW = Row(
    "1127-0900-train-abcd", "train", "ann@desk", "running", 61.0, ("gpu1",), 2, 8, 0, ended=False
)


def test_a_record_that_changes_is_another_one(tmp_path: Path) -> None:
    """What the page does not show is no change; without a record there is no page."""
    source = RunSource(lambda: tmp_path, lambda: ADDRESS)
    log = tmp_path / "logs" / "gpu1" / "rank_0.out"
    log.parent.mkdir(parents=True)
    prints = [source.fingerprint()]
    log.write_text("line\n")
    prints.append(source.fingerprint())
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    prints.append(source.fingerprint())
    assert len(set(prints)) == 3
    (tmp_path / "outputs").mkdir()
    for name in ("outputs/model.pt", "report.html", ".part-1", "logs/gpu1/sizes.jsonl"):
        (tmp_path / name).write_text("x")
    assert source.fingerprint() == prints[-1]
    (tmp_path / "loop").symlink_to(tmp_path)
    assert len(source.fingerprint()) == len(prints[-1]) + 1, "a link is not followed"
    with pytest.raises(NotReady, match="nothing of the run is on record here yet"):
        RunSource(lambda: None, lambda: ADDRESS).fingerprint()


def test_a_record_without_a_file_has_a_page(tmp_path: Path) -> None:
    """Whatever is missing in it."""
    source = RunSource(lambda: tmp_path, lambda: ADDRESS)
    assert "secret" in source.page(source.data())


def test_the_list_has_each_run_with_hostile_names_as_text() -> None:
    """Its address has the token; nothing in it ends a script."""
    progress = RankProgress(0, 5, 10, rate=2.0, unit="</script>")
    rows = [
        dataclasses.replace(
            ROW, task="</script><script>alert(1)</script>\x1b[0m", progress=progress
        ),
        dataclasses.replace(ROW, ended=True, nodes=("gpu1", "gpu2")),
    ]
    data = list_data("mine", rows, 3, 1000.0)
    assert [run["nodes"] for run in data["runs"]] == ["1 of 2", "2"]
    assert [run["age"] for run in data["runs"]] == ["1 m 01 s", "1 m 01 s ago"]
    assert data["omitted"] == "3 older runs not shown"
    page = render_list(data, ADDRESS)
    assert "</script><script>alert" not in page
    assert "\x1b" not in page
    assert "script-src 'sha256-" in page


class Opened:
    """A run whose page is open, without hosts."""

    def __init__(self, *_: Any) -> None:
        self.document = Document(RunSource(lambda: None, lambda: ADDRESS))
        self.follower = self
        self.is_closed = False

    def start(self) -> None:
        """Follow nothing."""

    def close(self) -> None:
        """Note that it was let go of."""
        self.is_closed = True


def test_few_runs_are_followed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that nobody looks at makes room; a run that is not listed has no page."""
    monkeypatch.setattr(cluster_pages, "RunPage", Opened)
    monkeypatch.setattr(cluster_pages, "MAX_OPEN", 2)
    pages = ClusterPages(
        request(tmp_path), QuietConsole(), lambda document: document, lambda _: ADDRESS
    )
    names = ["r-1", "r-2", "r-3"]
    pages._source.show([dataclasses.replace(ROW, run_id=name) for name in names])
    first, second = (pages.find(name) for name in names[:2])
    assert first is not None
    assert second is not None
    assert pages.find("r-1") is first
    assert pages.find("r-9") is None
    first.stream_count = 1
    second.touch()
    assert pages.find("r-3") is not None
    assert len(pages.documents()) == 3, "the list, the first and the third"
    third = pages.find("r-3")
    assert third is not None
    third.stream_count = 1
    with pytest.raises(Busy, match="2 runs are looked at already"):
        pages.find("r-2")


def test_the_terminal_hears_of_each_change_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line; where the machine was reached by SSH, also how to look from elsewhere."""
    announce = serve.Announcer()
    announce(Status("before the address"))
    announce(Status())
    announce.begin()
    away = Status("not heard of gpu1; trying again", 1.0)
    for status in (Status(), away, away, Status("", 2.0), Status("succeeded", ended=True)):
        announce(status)
    said = ["not heard of gpu1; trying again", "up to date again"]
    assert capsys.readouterr().out.splitlines() == [*said, "the run has ended: succeeded"]
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 50000 10.0.0.1 22")
    site = serve.Site(0)
    with site.serving():
        serve.say_address(site.server, "the run")
    url, _, tunnel = capsys.readouterr().out.splitlines()
    assert url == site.server.url
    assert tunnel.endswith(f"ssh -N -L {site.server.port}:127.0.0.1:{site.server.port} 10.0.0.1")
