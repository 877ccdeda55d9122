"""The release writer: a release arrives whole or not at all."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.core.wire.codec import Frame
from runner.host.storage import release_store
from runner.host.storage.release_store import STORE_ID
from runner.host.storage.release_writer import ReleaseWriter
from tests.unit.release_builders import (
    Made,
    begun,
    done,
    is_intact,
    left_in,
    push_handler,
    release,
    store,
    stream,
)

TREE = release(
    {"a": b"one", "d/b": b"two" * 100, "d/copy": b"one", "empty": b"", "z": b"", "-x\n": b"x"},
    modes={"d/copy": 0o755},
    folders={"nothing": 0o500},
    links={"l": "/nowhere"},
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=5)
@given(st.lists(st.integers(1, 40), min_size=1))
def test_stream_may_be_cut_anywhere(tmp_path: Path, sizes: list[int]) -> None:
    """However the wire cuts it, every file arrives as it was."""
    shutil.rmtree(tmp_path / "releases", ignore_errors=True)
    assembly = begun(tmp_path, TREE)
    rest = stream(assembly, TREE)
    while rest:
        for size in sizes:
            done(assembly.write(rest[:size]))
            rest = rest[size:]
    done(assembly.finish())

    assert is_intact(str(tmp_path), TREE.name)
    code = TREE.code(tmp_path)
    assert {
        str(path.relative_to(code)): path.read_bytes()
        for path in code.rglob("*")
        if path.is_file() and not path.is_symlink()
    } == {file.path: TREE.contents[file.digest] for file in TREE.manifest.files}


@pytest.mark.parametrize("steps", range(6))
def test_nothing_is_left_of_what_was_given_up(tmp_path: Path, steps: int) -> None:
    """Whenever the controller leaves, the store is as it was before."""
    before = release({"a": b"one"})
    store(tmp_path, before)
    assembly = ReleaseWriter(str(tmp_path), TREE.manifest.encode())
    begin, end = assembly.begin(), assembly.finish()
    for number in range(steps):
        if number == 0:
            next(begin)
        elif number == 1:
            list(begin)
        elif number == 2:
            done(assembly.write(stream(assembly, TREE)[:5]))
        elif number == 3:
            done(assembly.write(stream(assembly, TREE)[5:]))
        else:
            done(end)

    begin.close()
    end.close()
    done(assembly.abort())
    done(assembly.abort())

    assert is_intact(str(tmp_path), TREE.name) is (steps == 5)
    assert [name for name in left_in(tmp_path) if name != TREE.name] == [before.name]
    assert is_intact(str(tmp_path), before.name)


def test_too_little_is_refused(tmp_path: Path) -> None:
    """A stream that ended early is no release."""
    assembly = begun(tmp_path, TREE)
    done(assembly.write(stream(assembly, TREE)[:-1]))

    with pytest.raises(ValueError, match="the stream ended within d/b"):
        done(assembly.finish())
    assert not TREE.code(tmp_path).exists()


def test_full_disk_is_told_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for an upload that cannot fit."""

    class Full:
        f_bavail, f_frsize = 1, 100

    monkeypatch.setattr(os, "statvfs", lambda _: Full)

    assembly = begun(tmp_path, TREE)

    assert "No space left on device: 0.0 MB are needed, 0.0 MB are free" in assembly.space_error


def test_known_contents_are_another_name_of_the_same_file(tmp_path: Path) -> None:
    """A second release costs the disk, and the wire, only what is new in it."""
    store(tmp_path, TREE)
    second = release(
        {"a": b"changed", "moved/b": b"two" * 100, "x": b"one"}, modes={"moved/b": 0o600}
    )

    assert store(tmp_path, second) == ["a"]
    assert (second.code(tmp_path) / "x").samefile(TREE.code(tmp_path) / "a")
    moved = second.code(tmp_path) / "moved/b"  # with another mode it is another file
    assert (moved.read_bytes(), moved.stat().st_mode & 0o777) == (b"two" * 100, 0o400)


def test_release_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, synced_before_rename: Callable[[Path], bool]
) -> None:
    """A power cut leaves no name of a hash with other content: not of a file copied here either."""
    store(tmp_path, TREE)
    second = release({"a": b"one", "b": b"three"}, modes={"a": 0o500})
    store(tmp_path, second)

    for made in (TREE, second):
        paths = [made.code(tmp_path) / file.path for file in made.manifest.files]
        for path in (*paths, made.code(tmp_path).parent / release_store.MANIFEST):
            assert synced_before_rename(path), path


def test_disk_without_hard_links_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file has one name only, nothing is sent again either."""
    store(tmp_path, TREE)
    second = release({"x": b"one", "y": b"one"})

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)

    assert store(tmp_path, second) == []
    assert is_intact(str(tmp_path), second.name)
    assert not (second.code(tmp_path) / "x").samefile(TREE.code(tmp_path) / "a")


class Talk:
    """The host's end of a deploy, and what it answers."""

    def __init__(self, workdir: Path) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.end = push_handler(workdir, self._reply)
        self._number = 0

    def _reply(self, kind: str, data: dict[str, Any], _: bytes) -> None:
        self.told.append((kind, data))

    def ask(self, what: Callable[[Frame], Any], payload: bytes = b"", **data: Any) -> None:
        self._number += 1
        for _ in what(Frame("x", {"id": self._number, **data}, payload)) or ():
            pass

    def offer(self, made: Made) -> list[str]:
        self.ask(self.end.on_manifest, zlib.compress(made.manifest.encode()))
        kind, data = self.told[-1]
        assert (kind, data["id"]) == ("missing", self._number)
        return [made.manifest.files[index].path for index in data["missing"]]


def test_receiving_stores_what_was_lacking(tmp_path: Path) -> None:
    """Compressed or not, the pieces make the release; older ones but `keep` go."""
    old = release({"a": b"old"})
    store(tmp_path, old)
    talk = Talk(tmp_path)
    lacks = talk.offer(TREE)
    files = {file.path: TREE.contents[file.digest] for file in TREE.manifest.files}

    for number, path in enumerate(lacks):
        data = files[path]
        talk.ask(
            talk.end.on_chunk,
            zlib.compress(data) if number % 2 else data,
            compressed=bool(number % 2),
        )
    talk.ask(talk.end.on_finish, keep=0)

    assert talk.told[-1] == ("stored", {"id": 2 + len(lacks), "new": True})
    assert left_in(tmp_path) == [TREE.name]
    talk.end.close()
    assert is_intact(str(tmp_path), TREE.name)


def test_receiving_leaves_nothing_of_a_failure(tmp_path: Path) -> None:
    """What was wrong is told once; pieces that were on their way already do no harm."""
    talk = Talk(tmp_path)
    talk.offer(TREE)

    with pytest.raises(ValueError, match="arrived with other content"):
        talk.ask(talk.end.on_chunk, b"wrong" * 100)
    talk.ask(talk.end.on_chunk, b"more")

    assert left_in(tmp_path) == []
    with pytest.raises(RuntimeError, match="no release is being pushed"):
        talk.ask(talk.end.on_finish, keep=3)


def test_word_of_a_host_that_shares_the_disk_is_taken(tmp_path: Path) -> None:
    """Only if what it stored is here: an id in a disk image may be that of another disk."""
    talk = Talk(tmp_path)
    talk.ask(talk.end.on_offer)
    talk.ask(talk.end.on_adopt, release=TREE.name)
    assert [kind for kind, _ in talk.told] == ["store", "absent"]
    assert left_in(tmp_path) == [STORE_ID]

    store(tmp_path, TREE)
    talk.ask(talk.end.on_adopt, release=TREE.name)
    assert talk.told[-1] == ("stored", {"id": 3, "new": False})
    assert not done(release_store.prune(str(tmp_path), 0, "")), "it is not pinned"


def test_release_that_another_deploy_removed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No launch goes on to a release that is gone."""
    talk = Talk(tmp_path)
    talk.offer(release({}))
    monkeypatch.setattr("runner.host.storage.release_store.pin", lambda *_: None)

    with pytest.raises(ValueError, match=r"raise deploy\.keep"):
        talk.ask(talk.end.on_finish, keep=0)
    assert all(kind != "stored" for kind, _ in talk.told)
