"""The index of workdirs: by it a host finds a run that was launched in another one."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.core.model.replies import checked_reply
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import RunPaths
from runner.host.agent.runs import Handler as Runs
from runner.host.agent.server import AgentContext
from runner.host.process.event_loop import run_steps
from runner.host.process.importer import HostCode
from runner.host.storage import run_owner, workdir_index
from runner.host.storage.run_list import list_runs
from runner.host.storage.workdir_index import INDEX, MAX_LINKS, list_elsewhere, remember

pytestmark = [pytest.mark.promise(10)]

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
    """So does one with errors, whichever was used last; no start waits for a home that hangs."""
    usual, fine, sick, dead = map(launch, ("home/.runner", "fine", "sick", "dead"), "1234")
    hang = time.sleep

    def read(workdir: str, *rest: Any) -> object:
        if workdir == sick:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return hang(60) if workdir == dead else list_runs(workdir, *rest)

    monkeypatch.setattr(workdir_index, "LIMIT_S", 1.0)
    monkeypatch.setattr(workdir_index, "list_runs", read)
    runs, unread = run_steps(list_elsewhere(str(tmp_path / "new"), "a"))
    assert [run["workdir"] for run in runs] == [usual, fine]
    assert unread.pop(dead) == "a disk there does not answer"
    assert "Stale" in unread.pop(sick)
    assert not unread
    monkeypatch.setattr(workdir_index, "private_folder", lambda *_: hang(60))
    run_steps(remember(str(tmp_path / "new")))
    assert len([*(home / ".runner" / INDEX).iterdir()]) == 3


def test_what_is_no_link_and_no_folder_hides_nothing(
    home: Path, launch: Launch, tmp_path: Path
) -> None:
    """Such as what NFS leaves of a removed file."""
    first, second = launch("first"), launch("second", "r2")
    (home / ".runner" / INDEX / ".nfs01").touch()
    (Path(second) / "runs" / "loop").symlink_to("loop")
    assert elsewhere(tmp_path / "new") == {"r1": first, "r2": second}


@pytest.mark.parametrize("odd", ["/", "./", "$x/"])
def test_no_home_costs_the_list(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, odd: str
) -> None:
    """A path is named as the controller takes it, or named as one that cannot be."""
    monkeypatch.setenv("HOME", f"{tmp_path}/{odd}home")
    other = launch("other", "r2")
    launch(f"{odd.strip('/')}/home/.runner".lstrip("/"))
    runs, unread = run_steps(list_elsewhere(str(tmp_path / "new"), "a"))
    reply = {"id": 1, "runs": runs, "unreadable": 0, "now": 1.0, "unread": unread}
    found = {each.workdir for each in checked_reply(Frame("runs", reply)).data["runs"]}
    assert found == ({other} if "$" in odd else {other, f"{tmp_path}/home/.runner"})
    assert len(unread) == odd.count("$")


def test_links_of_strangers_are_not_followed(home: Path, launch: Launch, tmp_path: Path) -> None:
    """Nor is one followed to a path that could not be named. That none is used is said."""
    launch("$HOME")
    theirs = launch("theirs", "r2")
    assert elsewhere(tmp_path / "new") == {"r2": theirs}
    index = home / ".runner" / INDEX
    index.chmod(0o777)
    runs, unread = run_steps(list_elsewhere(str(tmp_path / "new"), "a"))
    assert (runs, unread[str(index)]) == ([], f"{index} can be written to by everybody")


@pytest.mark.promise(12)
@pytest.mark.parametrize("change", ["another's", "open", "gone"])
def test_a_folder_that_others_can_change_has_no_run_of_ours(
    launch: Launch, tmp_path: Path, change: str
) -> None:
    """Where the folder of a workdir was removed, a stranger may have made another."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch").chmod(0o1777)
    workdir = launch("scratch/me", at=1e9)
    if change == "another's" and os.getuid():
        pytest.skip("only root can give a folder away")
    if change == "another's":
        os.chown(workdir, 4711, -1)
    elif change == "open":
        Path(workdir).chmod(0o777)
    else:
        shutil.rmtree(workdir)
    runs, unread = run_steps(list_elsewhere(str(tmp_path / "new"), "a"))
    assert (runs, [*unread]) == ([], [] if change == "gone" else [workdir])


def test_each_request_finds_the_run_that_it_names(launch: Launch, tmp_path: Path) -> None:
    """In a new conversation, too: after a lost connection, or as another node of the machine."""
    launch("home/.runner")
    workdir = launch("old", "r2")
    answers: list[tuple[str, dict[str, Any]]] = []
    context = AgentContext(
        lambda kind, data, _=b"": answers.append((kind, data)), bool, repr, HostCode({})
    )
    context.followed_workdir = str(tmp_path / "new")
    asked = {"id": 1, "run_id": "r2", "node": "a"}
    run_steps(Runs(context).on_run(Frame("run", asked)))
    assert answers.pop()[0] == "run"
    run_steps(Runs(context).on_mark_relaunch_pending(Frame("mark_relaunch_pending", asked)))
    assert Path(RunPaths(workdir, "r2", "a").relaunch_marker).exists()
    with pytest.raises(ValueError, match=r"there is no run r2 in .*/new"):
        run_steps(Runs(context).on_run(Frame("run", {**asked, "node": "b"})))
