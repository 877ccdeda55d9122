"""The release store: what a host has, and what may go."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from pathlib import Path

import pytest

from runner.core.protocol.paths import RunPaths
from runner.core.protocol.states import State
from runner.host.process.event_loop import run_steps
from runner.host.storage import release_store
from tests.unit.release_builders import Made, done, is_intact, left_in, release, store, write_into

TREE = release({"a": b"one", "d/b": b"two"}, folders={"empty": 0o755}, links={"l": "d/b"})


@pytest.fixture
def kept(tmp_path: Path) -> list[Made]:
    """Three releases in a store, the oldest first."""
    made = [release({"a": bytes([number])}) for number in range(3)]
    for age, each in enumerate(made):
        store(tmp_path, each)
        os.utime(each.code(tmp_path).parent / release_store.MANIFEST, (age, age))
    return made


@pytest.fixture
def gone() -> str:
    """The pid of a process that is no more."""
    done = subprocess.Popen(["true"])
    done.wait()
    return str(done.pid)


def run_with(workdir: Path, made: Made, state: str) -> Path:
    """The record of a run of that release."""
    folder = RunPaths(str(workdir), "0314-x", "gpu1")
    Path(folder.root).mkdir(parents=True)
    Path(folder.order).write_text(json.dumps({"release": made.name}))
    Path(folder.state).write_text(json.dumps({"state": state}))
    return Path(folder.state)


def test_stored_release_is_held(tmp_path: Path) -> None:
    """What is there is not pushed again."""
    store(tmp_path, TREE)

    assert release_store.has_release(str(tmp_path), TREE.name)
    assert not release_store.has_release(str(tmp_path), release({}).name)


def damage(code: Path, what: str) -> None:
    """Do to a stored release what somebody may have done."""
    for folder in (code, *code.glob("*/")):
        folder.chmod(0o700)
    if what == "written to":
        write_into(code / "a", b"ONE")
    elif what == "a mode":
        (code / "a").chmod(0o644)
    elif what == "another length":
        write_into(code / "a", b"longer")
        os.utime(code / "a", (release_store.SEAL_MTIME, release_store.SEAL_MTIME))
    elif what == "a link for a file":
        (code / "a").rename(code / "moved")
        (code / "a").symlink_to("moved")
    elif what == "another link":
        (code / "l").unlink()
        (code / "l").symlink_to("a")
    else:
        {"file": code / "a", "link": code / "l"}[what].unlink()


@pytest.mark.parametrize(
    "what",
    ["written to", "a mode", "another length", "a link for a file", "another link", "file", "link"],
)
def test_what_was_changed_is_not_held(tmp_path: Path, what: str) -> None:
    """Nobody runs code that is not what its hash says."""
    store(tmp_path, TREE)

    damage(TREE.code(tmp_path), what)

    assert not is_intact(str(tmp_path), TREE.name)


def test_a_release_that_was_found_damaged_counts_again_once_it_is_whole(tmp_path: Path) -> None:
    """A push that finds every file as it should be ends that."""
    store(tmp_path, TREE)
    release_store.mark_damaged(str(tmp_path), TREE.name)
    assert not release_store.has_release(str(tmp_path), TREE.name)

    assert run_steps(release_store.verify_content(str(tmp_path), TREE.name))

    assert release_store.has_release(str(tmp_path), TREE.name)


def test_empty_folder_belongs_to_it(tmp_path: Path) -> None:
    """A program may want to write there."""
    store(tmp_path, TREE)
    (TREE.code(tmp_path) / "empty").rmdir()

    assert not is_intact(str(tmp_path), TREE.name)


@pytest.mark.parametrize("data", [b"", b"no zlib", None], ids=["empty", "damaged", "missing"])
def test_release_without_its_manifest_is_not_held(tmp_path: Path, data: bytes | None) -> None:
    """After a power cut a file may be there without its bytes."""
    store(tmp_path, TREE)
    manifest = TREE.code(tmp_path).parent / release_store.MANIFEST
    manifest.unlink()
    if data is not None:
        manifest.write_bytes(data)

    assert not release_store.has_release(str(tmp_path), TREE.name)


def test_manifest_of_another_release_is_not_taken(tmp_path: Path) -> None:
    """A folder that somebody renamed is not what it is called."""
    store(tmp_path, TREE)
    other = release({"a": b"else"})
    TREE.code(tmp_path).parent.rename(other.code(tmp_path).parent)

    assert not release_store.has_release(str(tmp_path), other.name)


def test_oldest_go(tmp_path: Path, kept: list[Made]) -> None:
    """`deploy.keep` older ones stay beside the current one."""
    oldest, older, current = (each.name for each in kept)

    assert done(release_store.prune(str(tmp_path), 1, current)) == [oldest]
    assert left_in(tmp_path) == sorted([older, current])


def test_current_one_stays_however_old(tmp_path: Path, kept: list[Made]) -> None:
    """Going back to earlier code does not remove it."""
    oldest, *newer = (each.name for each in kept)

    assert sorted(done(release_store.prune(str(tmp_path), 0, oldest))) == sorted(newer)
    assert left_in(tmp_path) == [oldest]


@pytest.mark.parametrize("state", list(State))
def test_release_of_a_run_stays_until_its_end(
    tmp_path: Path, kept: list[Made], state: State
) -> None:
    """Also on a network disk, where locks may mean nothing."""
    run_with(tmp_path, kept[0], state.value)

    removed = done(release_store.prune(str(tmp_path), 0, kept[2].name))

    assert (kept[0].name not in removed) is not state.is_terminal


def test_unreadable_record_keeps_nothing(tmp_path: Path, kept: list[Made]) -> None:
    """A torn state of some old run does not end a deploy."""
    run_with(tmp_path, kept[0], "running").write_text("{")

    assert kept[0].name in done(release_store.prune(str(tmp_path), 0, kept[2].name))


def test_held_release_is_not_removed(tmp_path: Path, kept: list[Made]) -> None:
    """Between a deploy and the start of its ranks, another deploy takes nothing away."""
    first = kept[0].name
    descriptor = release_store.pin(str(tmp_path), first)
    assert descriptor is not None

    assert done(release_store.prune(str(tmp_path), 0, kept[2].name)) == [kept[1].name]
    os.close(descriptor)
    assert done(release_store.prune(str(tmp_path), 0, kept[2].name)) == [first]


def test_two_may_hold_one_release(tmp_path: Path, kept: list[Made]) -> None:
    """Two launches of the same code do not get in each other's way."""
    both = [release_store.pin(str(tmp_path), kept[0].name) for _ in range(2)]

    assert None not in both
    for descriptor in both:
        os.close(descriptor or 0)


def test_what_is_gone_cannot_be_held(
    tmp_path: Path, kept: list[Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes too late is told, even when it was removed in the very moment."""
    name = kept[0].name
    real = fcntl.flock

    def removed_before(descriptor: int, how: int) -> None:
        (tmp_path / "releases" / name).rename(tmp_path / "elsewhere")
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    assert release_store.pin(str(tmp_path), name) is None
    assert release_store.pin(str(tmp_path), name) is None


def test_disk_without_locks_is_no_obstacle(
    tmp_path: Path, kept: list[Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On some network disks no lock can be taken."""

    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)

    descriptor = release_store.pin(str(tmp_path), kept[0].name)
    assert descriptor is not None
    os.close(descriptor)
    assert len(done(release_store.prune(str(tmp_path), 0, kept[2].name))) == 2


def test_store_has_one_name(tmp_path: Path) -> None:
    """Hosts that share a disk know it by that; other disks have others."""
    name = release_store.store_id(str(tmp_path / "a"))

    assert len(name) == 16
    assert release_store.store_id(str(tmp_path / "a")) == name
    assert release_store.store_id(str(tmp_path / "b")) != name


def test_who_names_the_store_first_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hosts that begin at once agree, and nothing else is left."""
    real = os.link

    def after_another(source: str, target: str) -> None:
        Path(target).write_text("theirs")
        real(source, target)

    monkeypatch.setattr(os, "link", after_another)

    assert release_store.store_id(str(tmp_path)) == "theirs"
    assert left_in(tmp_path) == [release_store.STORE_ID]


def test_disk_without_hard_links_has_a_name_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every network disk has hard links."""

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)

    name = release_store.store_id(str(tmp_path))
    assert release_store.store_id(str(tmp_path)) == name
    assert left_in(tmp_path) == [release_store.STORE_ID]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> str:
    """A host with a name that may be mistaken for one of our marks."""
    names = os.uname()
    name = "gpu1.old.broken.lab"
    monkeypatch.setattr(
        os, "uname", lambda: os.uname_result((names.sysname, name, *tuple(names)[2:]))
    )
    return name


@pytest.mark.parametrize("mark", ["", ".old", ".broken"])
def test_leftovers_of_the_dead_are_removed(tmp_path: Path, host: str, gone: str, mark: str) -> None:
    """A link that was killed leaves its part of a release for the next one to clear."""
    ours = f".0123456789abcdef.{host}.{os.getpid()}{mark}.new"
    dead = f".0123456789abcdef.{host}.{gone}{mark}.new"
    others = [
        f".0123456789abcdef.{host}.1{mark}.new",  # alive
        f".0123456789abcdef.other.{gone}{mark}.new",  # of a host whose processes we do not see
        "0123456789abcdef",
        release_store.STORE_ID,
    ]
    for name in (ours, dead, *others):
        (tmp_path / name / "code").mkdir(parents=True)

    done(release_store.remove_stale(str(tmp_path)))

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_contents_that_were_changed_are_not_known(tmp_path: Path) -> None:
    """What somebody wrote into an old release does not get into a new one."""
    store(tmp_path, TREE)
    write_into(TREE.code(tmp_path) / "a", b"ONE")

    assert store(tmp_path, release({"x": b"one", "y": b"two"})) == ["x"]
