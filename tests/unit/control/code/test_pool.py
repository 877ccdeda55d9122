"""Code kept beside records: complete, apart from the work tree, removed only when unused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runner.control.code.pool import STORE, CodePool
from runner.control.code.snapshot import Snapshot
from runner.control.code.source import CodeKeeper
from runner.core.errors import NotReady
from runner.core.spec import Deploy
from tests.golden.builders import spec
from tests.unit.control.code.test_worktree import make


def snapshot(project: Path) -> Snapshot:
    return Snapshot(spec(deploy=Deploy(enabled=True)), project)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two files, one below a folder, and an empty folder."""
    return make(tmp_path / "project", "d/", "empty/", train_dot_py="print(1)", d__run_dot_sh="echo")


@pytest.fixture
def store(tmp_path: Path) -> CodePool:
    return CodePool(make(tmp_path / "runs", "r/") / STORE)


def test_what_is_kept_is_the_release(
    project: Path, store: CodePool, synced_before_rename: Callable[[Path], bool]
) -> None:
    """Its manifest and every byte, whatever becomes of the work tree, also after a power cut."""
    taken = snapshot(project)
    assert CodeKeeper(store, taken).finish() == ""
    (project / "train.py").write_text("edited in place")

    kept = store.find(taken.code.release)

    assert kept is not None
    assert kept.manifest == taken.release().manifest
    assert [b"".join(kept.read(file)) for file in kept.manifest.files] == [b"echo", b"print(1)"]
    paths = [*store.folder.glob("pool/*"), *store.folder.glob("releases/*")]
    assert all(map(synced_before_rename, paths))
    assert store.find("0" * 16) is None
    assert not (store.folder / "pool").stat().st_mode & 0o077
    assert (store.folder / ".gitignore").read_text() == "*\n"


def test_damaged_contents_are_never_pushed(project: Path, store: CodePool) -> None:
    """Nor are those of a manifest that is damaged."""
    taken = snapshot(project)
    store.add(taken.release())
    kept = store.find(taken.code.release)
    assert kept is not None
    file = kept.manifest.files[1]
    path = store.content_path(file)
    path.chmod(0o600)
    path.write_text("print(0)")
    with pytest.raises(NotReady, match="it is damaged"):
        list(kept.read(file))
    path.write_text("")
    store.add(taken.release())
    assert path.read_text() == "print(1)", "one of another size is written anew"
    manifest = store.folder / "releases" / taken.code.release
    manifest.chmod(0o600)
    manifest.write_text("{}")
    assert store.find(taken.code.release) is None
