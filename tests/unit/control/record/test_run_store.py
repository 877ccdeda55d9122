"""The controller's record of a run."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.control.code.worktree import scan
from runner.control.record import run_index
from runner.control.record.run_store import RunStore
from runner.core.errors import ConfigError, NotReady
from runner.core.outcome.verdict import Verdict
from runner.core.wire.codec import encode
from runner.core.wire.events import Event, ProgramStarted, parse
from runner.core.wire.run_info import PastAttempt
from tests.golden.builders import RUN_ID, plan, request, told

RECORD = {".gitignore", "config.yaml", "overrides.yaml", "plan.json", "logs"}


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user stands in `tmp_path`."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return created(tmp_path / "runs" / RUN_ID)


def created(folder: Path) -> RunStore:
    store = RunStore(folder)
    store.create(replace(request(folder), overrides=("a=1", "b='é \"x\"'")), plan(1))
    return store


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_new_folder_holds_the_configuration(
    synced_before_rename: Callable[[Path], bool], store: RunStore
) -> None:
    """It is there with its parents, on the disk, and `latest` beside it points here."""
    assert names(store.folder) == RECORD
    files = RECORD - {".gitignore", "logs"}
    assert [name for name in files if not synced_before_rename(store.folder / name)] == []
    assert (store.folder / "config.yaml").read_text() == "seed: 1\n"
    typed = yaml.safe_load((store.folder / "overrides.yaml").read_text())
    assert typed == ["a=1", "b='é \"x\"'"]
    assert names(store.folder.parent) == {RUN_ID, "latest", ".gitignore"}
    assert (store.folder.parent / "latest").readlink() == Path(RUN_ID)
    store.write_log("a", "rank_0.out", 0, b"x")
    folders = (store.folder, store.logs, store.logs / "a")
    assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700] * 3, "the user's alone"


def test_record_ignores_itself_in_a_folder_that_was_there_before(tmp_path: Path) -> None:
    """A `runs/` of TensorBoard's or YOLO's is left as it is, and our records in it are no code."""
    (tmp_path / "runs" / "tensorboard").mkdir(parents=True)
    created(tmp_path / "runs" / RUN_ID)
    assert names(tmp_path / "runs") == {RUN_ID, "latest", "tensorboard"}
    assert not scan(tmp_path).entries


def test_a_record_has_one_writer_and_is_made_good(store: RunStore) -> None:
    """Whoever comes next adds what an interrupted one lacks; `latest` stays that of the last."""
    other = RunStore(store.folder)
    assert not other.reopen(request(store.folder), plan(1))
    assert not other.write_error
    (store.folder / "config.yaml").unlink()
    (store.folder / "plan.json").unlink()
    store.unlock()
    created(store.folder.parent / "second")

    assert other.reopen(request(store.folder, config_yaml="seed: 2\n"), plan(1))

    assert names(store.folder) == RECORD
    assert (store.folder.parent / "latest").readlink() == Path("second")


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("full", "exists already; a run never overwrites another"),
        ("full/file/x", "cannot create .*/full/file/x: .*/full/file is no folder"),
    ],
)
def test_a_folder_that_cannot_be_the_runs(tmp_path: Path, place: str, told: str) -> None:
    """It is refused before anything is contacted."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match=told):
        RunStore(tmp_path / place).require_free()


def test_a_run_whose_plan_cannot_be_written_has_not_begun(store: RunStore) -> None:
    """No id finds it, and the latest run is the one before."""
    failed = RunStore(store.folder.parent / "failed")
    asked = request(failed.folder, run_id="f")
    with room_for(2000), pytest.raises(OSError, match="File too large"):
        failed.create(asked, replace(plan(1), cluster="x" * 2000))
    assert names(store.folder.parent) == {RUN_ID, "latest", ".gitignore"}
    assert run_index.record_folder("f") is None
    assert run_index.record_folder("latest") == store.folder


def test_the_end_of_an_attempt_is_not_that_of_the_next(store: RunStore) -> None:
    """Where the hosts relaunched the run after it was read."""
    verdict = Verdict("lost", 4, 12.5, unverified=("b",))
    store.write_plan(plan(2), request(store.folder))
    store.write_result(plan(2), verdict, 1e9, None)
    result = json.loads((store.folder / "result.json").read_text())
    of = {"run_id": RUN_ID, "attempt": 0, "began": 1e9, "ended": 1e9 + 12.5}
    assert result == {**of, **encode(verdict), "diagnosis": None}
    found = [store.has_result]
    store.write_plan(replace(plan(2), attempt=1), request(store.folder))
    assert [*found, store.has_result] == [True, False]
    with pytest.raises(NotReady, match="there is no end of its last attempt"):
        store.read_result()


def test_a_log_is_never_doubled_and_has_no_gap(store: RunStore) -> None:
    """Whoever follows again, from the first byte or another, adds only what is new."""
    store.write_log("a", "rank_0.out", 0, b"on")
    store.write_log("a", "rank_0.out", 2, b"e\n")
    again = RunStore(store.folder)
    again.write_log("a", "rank_0.out", 0, b"one\ntwo\n")
    again.write_log("a", "rank_0.out", 2, b"e\ntwo\nthree\n")
    again.write_log("a", "rank_0.out", 100, b"beyond a gap")

    assert (store.logs / "a" / "rank_0.out").read_bytes() == b"one\ntwo\nthree\n"


@contextlib.contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file of ours can grow beyond a size."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def test_a_disk_that_was_full_for_a_moment_leaves_no_hole(store: RunStore) -> None:
    """What is here stays a beginning of the host's file, so that a pull can fill the rest."""
    there = bytes(range(256)) * 100
    store.write_log("a", "rank_0.out", 0, there[:8000])
    with room_for(10_000):
        store.write_log("a", "rank_0.out", 8000, there[8000:16000])
    store.write_log("a", "rank_0.out", 16000, there[16000:])
    here = (store.logs / "a" / "rank_0.out").read_bytes()
    assert here == there[: len(here)]
    assert 8000 <= len(here) <= 10_000
    assert "cannot write" in store.write_error
    store.write_log("a", "rank_0.out", len(here), there[len(here) :])
    assert (store.logs / "a" / "rank_0.out").read_bytes() == there


def test_an_event_after_a_torn_one_can_be_read(store: RunStore) -> None:
    """Its line is its own."""
    event = Event(RUN_ID, "a", 0, 1, 1.0, 1.0, ProgramStarted(7))
    with room_for(10):
        store.append(event)
    store.append(replace(event, seq=2))
    lines = (store.folder / "events.jsonl").read_text().splitlines()
    assert parse(lines[-1]).seq == 2


def test_a_tail_shows_the_cr_that_a_shell_quotes(tmp_path: Path) -> None:
    """A progress bar's last state is what follows its last CR; that of a Windows line is text."""
    store = RunStore(tmp_path)
    store.write_log("a", "x.err", 0, b"1%\r2%\nt.sh: line 2: set: pipefail\r: invalid option\n")
    assert store.tail("a", "x.err", 9) == ["2%", "t.sh: line 2: set: pipefail\\r: invalid option"]


@pytest.mark.parametrize(
    ("fields", "nnodes", "lost", "words"),
    [
        ({"exclude": ("gpu[7-8]",)}, None, "b", "'cluster.exclude=[gpu[7-8],b,x]'"),
        ({"master": "a"}, None, "a", "'cluster.exclude=[a,x]' cluster.master=null"),
        ({}, (2, 2), "b", ""),
        ({}, None, "ab", ""),
    ],
)
def test_a_run_is_repeated_without_what_it_lost(
    tmp_path: Path, fields: dict[str, Any], nnodes: tuple[int, int] | None, lost: str, words: str
) -> None:
    """In this attempt and before, and what was excluded already; if that can be known to do."""
    asked = request(tmp_path)
    cluster = replace(asked.spec.cluster, **fields)
    task = replace(asked.spec.task, nnodes=nnodes)
    asked = replace(asked, spec=replace(asked.spec, cluster=cluster, task=task))
    store = RunStore(tmp_path / "runs" / RUN_ID)
    store.create(asked, plan(1, 1))
    past = (PastAttempt(0, ("a", "x"), told("lost x"), 20.0, ("x",)),)
    verdict = Verdict("lost", 4, 65.0, unverified=tuple(lost), past_attempts=past)
    command = store.rerun_without_lost(plan(1, 1), verdict)
    assert command == (words and f"runner rerun={RUN_ID} {words}")
    (store.folder / "overrides.yaml").unlink()  # as in a record of a launch elsewhere
    assert store.rerun_without_lost(plan(1, 1), verdict) == ""
