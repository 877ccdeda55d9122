"""Garbage collection on a host: what goes and what stays."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from runner.core.protocol.paths import RunPaths
from runner.host.process import procfs
from runner.host.storage import garbage, run_owner
from tests.unit.release_builders import done, left_in, release, store

DAY = 86400.0


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """A work folder."""
    return tmp_path / "work"


def run(workdir: Path, name: str, state: str = "succeeded", days: float = 10.0) -> Path:
    """A run of node `a` that last changed its state so long ago."""
    folder = workdir / "runs" / name / "a"
    (folder / "work" / "frozen").mkdir(parents=True)
    (folder / "work" / "frozen" / "file").write_bytes(b"x" * 5000)
    (folder / "work" / "frozen").chmod(0o555)
    (folder / "format").write_text("2\n")
    (folder / "order.json").write_text(json.dumps({"release": "r"}))
    (folder / "state.json").write_text(json.dumps({"state": state}))
    os.utime(folder / "state.json", (time.time() - days * DAY,) * 2)
    return folder


def test_what_is_no_run_is_not_ours_to_remove(workdir: Path) -> None:
    """Somebody set `cluster.workdir` to a folder that has a `runs/` of its own."""
    run(workdir, "exp-1").joinpath("format").unlink()
    run(workdir, "Experiment_2")

    assert done(garbage.collect_garbage(str(workdir), "a", 7 * DAY, dry_run=False))["runs"] == []
    assert (workdir / "runs/exp-1/a/order.json").exists()


def test_old_ended_runs_go_whole(workdir: Path) -> None:
    """With what their ranks made read-only; young ones stay, and other nodes' parts."""
    run(workdir, "old")
    run(workdir, "young", days=1)
    run(workdir, "shared").joinpath("../b").mkdir()

    gone = done(garbage.collect_garbage(str(workdir), "a", 7 * DAY, dry_run=False))

    assert (gone["runs"], gone["in_use"]) == (["old", "shared"], [])
    assert gone["bytes"] >= 2 * 5000
    assert sorted(path.name for path in (workdir / "runs").iterdir()) == ["shared", "young"]
    assert [path.name for path in (workdir / "runs" / "shared").iterdir()] == ["b"]


def test_dry_run_says_the_same_and_removes_nothing(workdir: Path) -> None:
    """What is shown is what would go."""
    run(workdir, "old")
    name = release({"a": b"1"}).name
    store(workdir, release({"a": b"1"}))
    manifest = workdir / "releases" / name / "manifest"
    os.utime(manifest, (0, 0))

    shown = done(garbage.collect_garbage(str(workdir), "a", DAY, dry_run=True))

    assert (shown["runs"], shown["releases"]) == (["old"], [name])
    assert (workdir / "runs" / "old" / "a" / "work").is_dir()
    assert name in left_in(workdir)
    assert done(garbage.collect_garbage(str(workdir), "a", DAY, dry_run=False)) == shown


def test_run_whose_supervisor_lives_stays(workdir: Path) -> None:
    """Its socket says so, whatever its record says."""
    name = f"held-{os.getpid()}"  # names of sockets are the machine's
    run(workdir, name)
    listener = run_owner.RunSocket(RunPaths(str(workdir), name, "a")).take()
    assert listener is not None

    with listener:
        gone = done(garbage.collect_garbage(str(workdir), "a", 0, dry_run=False))

    assert (gone["runs"], gone["in_use"]) == ([], [name])
    assert done(garbage.collect_garbage(str(workdir), "a", 0, dry_run=False))["runs"] == [name]


def test_run_without_an_end_goes_only_when_it_cannot_begin_any_more(workdir: Path) -> None:
    """A launch may just be copying the code; one that died has been silent for an hour."""
    run(workdir, "young", "starting", days=0.01)
    run(workdir, "dead", "running", days=0.1)

    gone = done(garbage.collect_garbage(str(workdir), "a", 0, dry_run=False))

    assert (gone["runs"], gone["in_use"]) == (["dead"], ["young"])


def test_run_of_which_a_process_is_left_stays(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many old runs there are, the environment of a process is read once."""
    names = [f"old-{number}" for number in range(3)]
    for name in names:
        run(workdir, name)
    read_text = procfs.read_text
    read: list[str] = []

    def record(path: str) -> str:
        read.append(path)
        return read_text(path)

    monkeypatch.setattr(procfs, "read_text", record)
    env = {"RUNNER_RUN_ID": names[1], "RUNNER_NODE": "a"}
    with subprocess.Popen(["sleep", "900"], env={**os.environ, **env}) as left:
        gone = done(garbage.collect_garbage(str(workdir), "a", 0, dry_run=False))
        left.kill()

    assert (gone["runs"], gone["in_use"]) == ([names[0], names[2]], [names[1]])
    assert read.count(f"/proc/{left.pid}/environ") == 1


def test_releases_in_use_stay(workdir: Path) -> None:
    """A run that is not over names it, or a launch holds it."""
    named, held, unused = (release({"a": each}) for each in (b"1", b"2", b"3"))
    for each in (named, held, unused):
        store(workdir, each)
        os.utime(workdir / "releases" / each.name / "manifest", (0, 0))
    going = run(workdir, "on", "running", days=0)
    (going / "order.json").write_text(json.dumps({"release": named.name}))
    lock = os.open(workdir / "releases" / held.name, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)

    gone = done(garbage.collect_garbage(str(workdir), "a", DAY, dry_run=False))
    os.close(lock)

    assert gone["releases"] == [unused.name]
    assert {named.name, held.name} <= set(left_in(workdir))
