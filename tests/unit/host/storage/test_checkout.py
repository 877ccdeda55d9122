"""The private copy of a release that ranks work in."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from runner.host.storage import checkout
from runner.host.storage.checkout import check_out
from runner.host.storage.release_store import MANIFEST, is_intact
from tests.unit.release_builders import Made, release, store, write_into

TREE = release(
    {"train.py": b"print()\n", "sub/tool": b"#!/bin/sh\n", "ro/deep/x": b"", "-r \n": b"odd"},
    modes={"sub/tool": 0o750, "train.py": 0o640, "ro/deep/x": 0o400},
    folders={"ro": 0o555, "ro/deep": 0o511, "empty": 0o700},
    links={"l": "../outside", "sub/self": "."},
)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """An empty folder to work in."""
    work = tmp_path / "work"
    work.mkdir()
    return work


def copy(workdir: Path, made: Made, work: Path) -> int:
    """Check a release out; return in how many steps."""
    return sum(1 for _ in check_out(str(workdir), made.name, str(work)))


def told(folder: Path) -> dict[str, object]:
    """What is below a folder: permissions and content, or where a link leads."""
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = str(path.readlink())
        else:
            found[name] = (mode, None if path.is_dir() else path.read_bytes())
    return found


def test_copy_is_what_was_pushed(tmp_path: Path, work: Path) -> None:
    """Ranks find every file, folder and link with its permissions."""
    store(tmp_path, TREE)

    copy(tmp_path, TREE, work)

    assert told(work) == {
        "train.py": (0o640, b"print()\n"),
        "sub": (0o755, None),
        "sub/tool": (0o750, b"#!/bin/sh\n"),
        "sub/self": ".",
        "ro": (0o555, None),
        "ro/deep": (0o511, None),
        "ro/deep/x": (0o400, b""),
        "empty": (0o700, None),
        "-r \n": (0o644, b"odd"),
        "l": "../outside",
    }


@pytest.mark.parametrize("cloning", [True, False])
def test_writing_into_the_copy_changes_no_release(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch, cloning: bool
) -> None:
    """A program that writes beside itself writes into its own run, on any disk."""
    monkeypatch.setattr(checkout, "_CAN_REFLINK", {} if cloning else AlwaysFalse())
    store(tmp_path, TREE)
    copy(tmp_path, TREE, work)

    (work / "train.py").write_bytes(b"broken")

    assert is_intact(str(tmp_path), TREE.name)
    assert (TREE.code(tmp_path) / "train.py").read_bytes() == b"print()\n"


class AlwaysFalse(dict[tuple[int, int], bool]):
    """Disks that cannot clone."""

    def get(self, *_: object) -> bool:
        """Say so."""
        return False


def test_big_release_is_copied_in_steps(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link answers pings and hears a stop while it copies."""
    monkeypatch.setattr(checkout, "CHUNK", 1000)
    monkeypatch.setattr("runner.host.storage.checkout.BYTES_PER_STEP", 1000)
    monkeypatch.setattr(checkout, "_CAN_REFLINK", AlwaysFalse())
    made = release({str(number): bytes([number]) * 3000 for number in range(3)})
    store(tmp_path, made)

    assert copy(tmp_path, made, work) >= 6
    assert {path.name: path.read_bytes() for path in work.iterdir()} == {
        str(number): bytes([number]) * 3000 for number in range(3)
    }


def test_release_that_was_removed_is_named(tmp_path: Path, work: Path) -> None:
    """Whoever cleared the disk meanwhile sees what is missing, and where."""
    with pytest.raises(ValueError, match=f"release {TREE.name} is no longer in {tmp_path}"):
        copy(tmp_path, TREE, work)


def test_release_that_was_changed_is_not_run(tmp_path: Path, work: Path) -> None:
    """Ranks never run code that is not what its hash says, and the next launch heals it."""
    store(tmp_path, TREE)
    write_into(TREE.code(tmp_path) / "train.py", b"exit(1)\n")

    with pytest.raises(ValueError, match=r"train\.py was modified since it was stored"):
        copy(tmp_path, TREE, work)


def test_release_in_use_counts_as_new(tmp_path: Path, work: Path) -> None:
    """What is run again and again outlives what was pushed once."""
    store(tmp_path, TREE)
    manifest = TREE.code(tmp_path).parent / MANIFEST
    os.utime(manifest, (0, 0))

    copy(tmp_path, TREE, work)

    assert manifest.stat().st_mtime > 0
