"""The index of workdirs: by it a host finds a run that was launched in another one."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.core.protocol.paths import RunPaths
from runner.host.process.event_loop import run_steps
from runner.host.storage import run_owner, workdir_index
from runner.host.storage.run_list import list_runs
from runner.host.storage.workdir_index import INDEX, MAX_LINKS, list_elsewhere, remember

pytestmark = [pytest.mark.promise(10), pytest.mark.documents("docs/run-folder.md")]

Launch = Callable[..., str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home on this host."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Makes the folder of a run in a workdir, and returns that workdir."""

    def make(place: str, run_id: str = "r1", at: float = 1.0) -> str:
        workdir = tmp_path / place
        run_steps(remember(str(workdir)))
        folder = RunPaths(str(workdir), run_id, "a")
        Path(folder.root).mkdir(parents=True)
        Path(folder.info).write_text(json.dumps({"run_id": run_id, "launched_at": at}))
        run_owner.record(folder, [])
        return str(workdir)

    return make


def elsewhere(workdir: object, run_id: str = "") -> dict[str, str]:
    """The runs found in other workdirs than one, each with its own."""
    runs, _ = run_steps(list_elsewhere(str(workdir), "a", ["a"], run_id))
    return {run["info"]["run_id"]: run["workdir"] for run in runs}


def test_runs_are_found_in_every_workdir_but_the_one_asked_about(
    home: Path, launch: Launch, tmp_path: Path
) -> None:
    """In the usual one, too; of two runs with one id it is the one launched last."""
    usual, first = launch("home/.runner"), launch("a b", "r2", at=2.0)
    assert not (home / ".runner" / INDEX / "x").exists()
    second = launch("second", "r2", at=3.0)
    assert elsewhere(tmp_path / "new") == {"r1": usual, "r2": second}
    assert elsewhere(tmp_path / "new", "r1") == {"r1": usual}
    assert elsewhere(second) == {"r1": usual, "r2": first}
    (tmp_path / "alias").symlink_to(second)
    assert elsewhere(tmp_path / "alias") == {"r1": usual, "r2": first}


def test_the_index_has_a_limit(home: Path, tmp_path: Path) -> None:
    """Those go first whose folder is gone, then those that were used longest ago."""
    index = home / ".runner" / INDEX
    for number in range(MAX_LINKS):
        (tmp_path / f"w{number}").mkdir()
        run_steps(remember(str(tmp_path / f"w{number}")))
    for age, link in enumerate(sorted(index.iterdir(), key=Path.readlink)):
        os.utime(link, (age, age), follow_symlinks=False)
    (tmp_path / "w9").rmdir()  # the one used last
    for number in (0, 40, 41):
        run_steps(remember(str(tmp_path / f"w{number}")))
        (tmp_path / f"w{number}").mkdir(exist_ok=True)
    left = {link.readlink().name for link in index.iterdir()}
    assert left == {*(f"w{number}" for number in range(MAX_LINKS)), "w40", "w41"} - {"w9", "w1"}
    assert index.stat().st_mode & 0o777 == 0o700


def test_a_disk_that_hangs_costs_its_own_runs_alone(
    home: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is named; and no start waits for a home folder that hangs."""
    usual, dead = launch("home/.runner"), launch("dead", "r2")
    hang = time.sleep

    def slow(workdir: str, *rest: Any) -> object:
        return hang(60) if workdir == dead else list_runs(workdir, *rest)

    monkeypatch.setattr(workdir_index, "LIMIT_S", 0.5)
    monkeypatch.setattr(workdir_index, "list_runs", slow)
    runs, unread = run_steps(list_elsewhere(str(tmp_path / "new"), "a"))
    assert ([run["workdir"] for run in runs], unread) == ([usual], [dead])
    monkeypatch.setattr(workdir_index, "private_folder", lambda *_: hang(60))
    run_steps(remember(str(tmp_path / "new")))
    assert len([*(home / ".runner" / INDEX).iterdir()]) == 1


def test_links_of_strangers_are_not_followed(home: Path, launch: Launch, tmp_path: Path) -> None:
    """Nor is one followed to a path that could not be named."""
    launch("$HOME")
    theirs = launch("theirs", "r2")
    assert elsewhere(tmp_path / "new") == {"r2": theirs}
    (home / ".runner" / INDEX).chmod(0o777)
    assert elsewhere(tmp_path / "new") == {}
