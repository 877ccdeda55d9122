"""The release store: what a host has, and what may go."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from pathlib import Path

import pytest

from runner.core.wire.codec import encode
from runner.core.wire.events import Ended, Stopping
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.core.wire.states import Reason, ReasonKind, State
from runner.host.storage import release_store
from runner.host.storage.run_folder import EventLog
from tests.unit.release_builders import Made, is_intact, left_in, release, store, write_into

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


def test_what_is_damaged_is_named(tmp_path: Path) -> None:
    """By its size before a push, by its content in `check`."""
    store(tmp_path, TREE)
    file = TREE.code(tmp_path) / "d/b"
    found = []
    for data in (b"two", b"owt", b"longer"):
        write_into(file, data)
        for by_content in (False, True):
            damage = release_store.find_damage(str(tmp_path), TREE.name, by_content=by_content)
            found.append(damage)
    assert found == ["", "", "", "d/b", "d/b", "d/b"]

    assert store(tmp_path, TREE) == ["d/b"]
    assert is_intact(str(tmp_path), TREE.name)


@pytest.mark.parametrize("data", [b"", b"no zlib"])
def test_release_without_its_manifest_is_not_held(tmp_path: Path, data: bytes) -> None:
    """After a power cut a file may be there without its bytes."""
    store(tmp_path, TREE)
    manifest = TREE.code(tmp_path).parent / release_store.MANIFEST
    manifest.unlink()
    assert not release_store.has_release(str(tmp_path), TREE.name)
    manifest.write_bytes(data)
    assert not release_store.has_release(str(tmp_path), TREE.name)


def test_oldest_go(tmp_path: Path, kept: list[Made]) -> None:
    """`deploy.keep` older ones stay beside the current one."""
    oldest, older, current = (each.name for each in kept)

    assert release_store.prune(str(tmp_path), 1, current) == [oldest]
    assert left_in(tmp_path) == sorted([older, current])


@pytest.mark.parametrize("state", [State.STARTING, State.STOPPING, State.FAILED])
def test_release_of_a_run_stays_until_its_end(
    tmp_path: Path, kept: list[Made], state: State
) -> None:
    """Also on a network disk, where locks may mean nothing."""
    folder = RunPaths(str(tmp_path), "0314-x", "gpu1")
    Path(folder.root).mkdir(parents=True)
    order = Order("0314-x", "gpu1", 0, str(tmp_path), "/", release=kept[0].name)
    Path(folder.order).write_text(json.dumps(encode(order)))
    journal = EventLog(folder, order)
    if state is State.STOPPING:
        journal.append(Stopping(Reason(ReasonKind.USER)))
    elif state.is_terminal:
        journal.append(Ended(state))

    removed = release_store.prune(str(tmp_path), 0, kept[2].name)

    assert (kept[0].name not in removed) is not state.is_terminal


def test_held_release_is_not_removed(tmp_path: Path, kept: list[Made]) -> None:
    """Between a deploy and the start of its ranks, another deploy takes nothing away."""
    first = kept[0].name
    descriptor = release_store.pin(str(tmp_path), first)
    assert descriptor is not None

    assert release_store.prune(str(tmp_path), 0, kept[2].name) == [kept[1].name]
    os.close(descriptor)
    assert release_store.prune(str(tmp_path), 0, kept[2].name) == [first]


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


@pytest.mark.parametrize("mark", ["", ".broken"])
def test_leftovers_of_the_dead_are_removed(tmp_path: Path, gone: str, mark: str) -> None:
    """A link that was killed leaves its part of a release for the next one to clear."""
    host = os.uname().nodename
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

    release_store.remove_stale(str(tmp_path))

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)
