"""The pool of a host: a release arrives whole or not at all, is copied, and goes when it is old."""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.core.wire.codec import Frame
from runner.core.wire.files import tasks_digest
from runner.host.storage import pool
from runner.host.storage.pool import STORE_ID, check_out, has_tasks, prune, store_tasks
from tests.unit.release_builders import (
    Made,
    PushTaker,
    begun,
    is_intact,
    left_in,
    release,
    store,
    stream,
)

TREE = release(
    {"a": b"one", "d/b": b"two" * 100, "d/copy": b"one", "empty": b"", "z": b"", "-x\n": b"odd"},
    modes={"a": 0o400, "d/copy": 0o755},
    folders={"nothing": 0o700, "ro": 0o555, "ro/deep": 0o511},
    links={"l": "/nowhere", "d/self": "."},
)


@pytest.mark.parametrize("steps", range(4))
def test_what_was_given_up_is_no_release(tmp_path: Path, steps: int) -> None:
    """Whenever the controller leaves; whole contents stay, and are not sent again."""
    before = release({"b": b"two" * 100})
    store(tmp_path, before)
    upload = begun(tmp_path, TREE)
    data = stream(upload, TREE)
    for part in (data[:2], data[2:-1], data[-1:])[:steps]:  # two files of three bytes
        upload.write(part)

    upload.close()
    upload.close()

    assert left_in(tmp_path) == [before.name]
    assert not [name for name in left_in(tmp_path, "pool") if name.startswith(".")]
    assert is_intact(tmp_path, before)
    assert len(store(tmp_path, TREE)) == (3, 3, 2, 0)[steps]
    assert is_intact(tmp_path, TREE)


def test_too_little_is_refused(tmp_path: Path) -> None:
    """A stream that ended early is no release."""
    upload = begun(tmp_path, TREE)
    upload.write(stream(upload, TREE)[:-1])

    with pytest.raises(ValueError, match="the stream ended within d/b"):
        upload.finish()
    upload.close()


def test_full_disk_is_told_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for an upload that cannot fit."""

    class Full:
        f_bavail, f_frsize = 1, 100

    monkeypatch.setattr(os, "statvfs", lambda _: Full)

    assert "No space left on device: 0.0 MB are needed" in begun(tmp_path, TREE).space_error


def test_only_what_is_new_or_damaged_is_missing(tmp_path: Path) -> None:
    """A content is kept once, however many releases and files have it."""
    store(tmp_path, TREE)
    kept = TREE.content_path(tmp_path, "d/b").stat().st_ino
    other = release({"a": b"changed", "moved/b": b"two" * 100, "x": b"one"})

    assert store(tmp_path, other) == ["a"]
    assert TREE.content_path(tmp_path, "d/b").stat().st_ino == kept
    assert store(tmp_path, TREE) == []
    TREE.content_path(tmp_path, "d/b").write_bytes(b"longer" * 100)
    assert store(tmp_path, TREE) == ["d/b"]
    assert is_intact(tmp_path, TREE)


def test_two_may_push_the_same_at_once(tmp_path: Path) -> None:
    """Whoever is done last finds what the other one stored."""
    first = begun(tmp_path, TREE)
    second = begun(tmp_path, TREE)
    for upload in (first, second):
        upload.write(stream(upload, TREE))
    for upload in (second, first):
        upload.finish()
        upload.close()

    assert is_intact(tmp_path, TREE)
    assert left_in(tmp_path) == [TREE.name]


def test_all_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, synced_before_rename: Callable[[Path], bool]
) -> None:
    """A power cut leaves no name of a hash with other content."""
    store(tmp_path, TREE)

    paths = [*(tmp_path / "pool").iterdir(), TREE.manifest_path(tmp_path)]
    assert [path for path in paths if not synced_before_rename(path)] == []


@pytest.mark.parametrize("data", [None, b""])
def test_release_without_its_manifest_is_not_there(tmp_path: Path, data: bytes | None) -> None:
    """After a power cut a file may be there without its bytes."""
    store(tmp_path, TREE)
    manifest = TREE.manifest_path(tmp_path)
    manifest.unlink()
    if data is not None:
        manifest.write_bytes(data)
    assert not pool.has_release(str(tmp_path), TREE.name)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    return work


def test_what_a_program_writes_in_its_copy_changes_no_release(tmp_path: Path, work: Path) -> None:
    store(tmp_path, TREE)
    check_out(str(tmp_path), TREE.name, str(work))
    (work / "d/b").write_bytes(b"broken")
    assert is_intact(tmp_path, TREE)


def test_release_with_a_file_of_another_size_is_not_run(tmp_path: Path, work: Path) -> None:
    """It is named, and the next launch sends it again."""
    store(tmp_path, TREE)
    TREE.content_path(tmp_path, "a").write_bytes(b"exit(1)")

    with pytest.raises(ValueError, match=r"\(a\) has another size than it had; start again"):
        check_out(str(tmp_path), TREE.name, str(work))
    assert not pool.has_release(str(tmp_path), TREE.name)
    assert store(tmp_path, TREE) == ["a"]
    assert is_intact(tmp_path, TREE)


@pytest.fixture
def kept(tmp_path: Path) -> list[Made]:
    """Three releases with one file in common, the oldest first."""
    made = [release({"a": bytes([number]), "same": b"all"}) for number in range(3)]
    for age, each in enumerate(made):
        store(tmp_path, each)
        os.utime(each.manifest_path(tmp_path), (age, age))
    return made


def test_the_oldest_go_with_what_no_other_has(tmp_path: Path, kept: list[Made]) -> None:
    """Those used last stay, by number or by age; a dry run tells the same."""
    oldest = kept[0]
    (tmp_path / "releases" / STORE_ID).write_text("id")

    for arguments in ({"keep": 2}, {"cutoff": 0.5}):
        assert prune(str(tmp_path), dry_run=True, **arguments) == ([oldest.name], 1)
    assert is_intact(tmp_path, oldest)
    assert prune(str(tmp_path), keep=2) == ([oldest.name], 1)

    assert [is_intact(tmp_path, made) for made in kept] == [False, True, True]
    assert len(left_in(tmp_path, "pool")) == 3
    assert STORE_ID in left_in(tmp_path)
    removed, size = prune(str(tmp_path))
    assert (len(removed), size, left_in(tmp_path, "pool")) == (2, 5, [])


def test_what_is_in_use_stays(tmp_path: Path, kept: list[Made]) -> None:
    """A release that is pinned between a push and the start of its ranks, and one that comes."""
    pinned = pool.pin(str(tmp_path), kept[0].name)
    assert pinned is not None
    coming = release({"b": bytes([1]), "c": b"new"})
    upload = begun(tmp_path, coming)
    assert [file.path for file in upload.missing] == ["c"]

    assert set(prune(str(tmp_path))[0]) == {kept[1].name, kept[2].name}
    upload.write(b"new")
    upload.finish()
    os.close(pinned)

    assert is_intact(tmp_path, coming)
    assert is_intact(tmp_path, kept[0])
    assert prune(str(tmp_path), keep=1)[0] == [kept[0].name]


def test_what_nobody_finishes_goes_after_a_day(tmp_path: Path) -> None:
    """Whoever wrote it was killed, or its host lost power."""
    paths = [tmp_path / name / ".new-x" for name in ("releases", "pool")]
    for path in paths:
        path.parent.mkdir()
        path.touch()

    prune(str(tmp_path))
    assert all(path.exists() for path in paths)
    for path in paths:
        os.utime(path, (time.time() - 2 * 86400,) * 2)
    prune(str(tmp_path))
    assert not any(path.exists() for path in paths)


def test_what_is_gone_cannot_be_pinned(
    tmp_path: Path, kept: list[Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes too late is told, even when it was removed in the very moment."""
    real = fcntl.flock

    def removed_before(descriptor: int, how: int) -> None:
        kept[0].manifest_path(tmp_path).unlink()
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    assert pool.pin(str(tmp_path), kept[0].name) is None
    assert pool.pin(str(tmp_path), kept[0].name) is None


class Talk:
    """The host's end of a deploy of `TREE`, and what it answers."""

    def __init__(self, workdir: Path) -> None:
        self.told: list[str] = []
        self.taker = PushTaker(workdir, lambda kind, *_: self.told.append(kind))

    def ask(self, kind: str, payload: bytes = b"") -> None:
        self.taker.take(Frame(kind, {"id": 1, "keep": 0}, payload))

    def offer(self) -> None:
        self.ask("manifest", zlib.compress(TREE.manifest.encode()))


def test_older_releases_go_after_a_push(tmp_path: Path) -> None:
    """But as many as are to be kept; the new one is pinned."""
    store(tmp_path, release({"a": b"old"}))
    talk = Talk(tmp_path)
    talk.offer()
    talk.ask("chunk", stream(begun(tmp_path / "elsewhere", TREE), TREE))
    talk.ask("finish")
    assert left_in(tmp_path) == [TREE.name]
    talk.offer()
    assert talk.told == ["missing", "taken", "stored", "stored"]
    assert prune(str(tmp_path)) == ([], 0)


def test_a_push_leaves_nothing_of_a_failure(tmp_path: Path) -> None:
    """What was wrong is told once; pieces that were on their way already do no harm."""
    talk = Talk(tmp_path)
    talk.offer()
    with pytest.raises(ValueError, match="arrived with other content"):
        talk.ask("chunk", b"wrong" * 100)
    talk.ask("chunk", b"more")
    assert left_in(tmp_path) == left_in(tmp_path, "pool") == []
    with pytest.raises(RuntimeError, match="no release is being pushed"):
        talk.ask("finish")


def test_release_that_another_deploy_removed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No launch goes on to a release that is gone."""
    store(tmp_path, TREE)
    monkeypatch.setattr(pool, "pin", lambda *_: None)
    with pytest.raises(ValueError, match=r"raise deploy\.keep"):
        Talk(tmp_path).offer()


TASKS = (("env.py", b"import os\n"), ("train.py", b"import env\n"))
TASKS_HASH = tasks_digest(TASKS)


def tasks(workdir: Path) -> Path:
    bundle = {"hash": TASKS_HASH, "files": [[name, len(content)] for name, content in TASKS]}
    store_tasks(str(workdir), bundle, b"".join(content for _, content in TASKS))
    return workdir / "tasks" / TASKS_HASH


def test_tasks_that_are_there_stay(tmp_path: Path) -> None:
    """Ranks of another run may be reading them; what Python compiled beside does not count."""
    folder = tasks(tmp_path)
    (folder / "__pycache__").mkdir()
    before = (folder / "train.py").stat().st_ino
    assert tasks(tmp_path).joinpath("train.py").stat().st_ino == before
    assert has_tasks(str(tmp_path), TASKS_HASH)


def test_other_tasks_under_that_name_are_replaced(tmp_path: Path) -> None:
    """Changed, cut off by a power cut, with a file too many, or never complete."""
    for name, text in (("env.py", "evil = 1\n"), ("train.py", ""), ("os.py", "evil = 1\n")):
        folder = tasks(tmp_path)
        (folder / name).write_text(text)
        assert not has_tasks(str(tmp_path), TASKS_HASH)
        tasks(tmp_path)
        assert has_tasks(str(tmp_path), TASKS_HASH)
        (folder / "env.py").unlink()
        tasks(tmp_path)
    assert [path.name for path in (tmp_path / "tasks").iterdir()] == [TASKS_HASH]
