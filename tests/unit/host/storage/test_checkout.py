"""The private copy of a release that ranks work in."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from runner.host.storage import checkout
from runner.host.storage.checkout import check_out
from runner.host.storage.release_store import has_release
from tests.unit.release_builders import Made, is_intact, release, store, write_into

TREE = release(
    {"train.py": b"print()\n", "sub/tool": b"#!/bin/sh\n", "ro/deep/x": b"", "-r \n": b"odd"},
    modes={"sub/tool": 0o750, "train.py": 0o640, "ro/deep/x": 0o400},
    folders={"ro": 0o555, "ro/deep": 0o511, "empty": 0o700},
    links={"l": "../outside", "sub/self": "."},
)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    return work


def copy(workdir: Path, made: Made, work: Path) -> None:
    check_out(str(workdir), made.name, str(work))


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
        return False


def test_release_with_a_file_of_another_size_is_not_run(tmp_path: Path, work: Path) -> None:
    """It is named, and the next launch sends it again."""
    store(tmp_path, TREE)
    write_into(TREE.code(tmp_path) / "train.py", b"exit(1)")

    with pytest.raises(ValueError, match=r"train\.py has another size than it had"):
        copy(tmp_path, TREE, work)
    assert not has_release(str(tmp_path), TREE.name)
    assert "train.py" in store(tmp_path, TREE)
    assert is_intact(str(tmp_path), TREE.name)
