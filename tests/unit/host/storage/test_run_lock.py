"""The private folder of locks and sockets, in a place where anybody may make folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.core.protocol.paths import RunPaths
from runner.host.storage import run_lock
from runner.host.storage.run_lock import RunLock

RUN = RunPaths("/w", "run", "a")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /tmp of its own."""
    monkeypatch.setattr(run_lock, "BASE_DIR", str(tmp_path))
    return tmp_path


def taken(place: Path, name: str) -> None:
    """Have somebody else's folder there: one that is not private is as good as that."""
    (place / name).mkdir()
    (place / name).chmod(0o755)


def test_a_folder_of_somebody_elses_is_left_alone(place: Path) -> None:
    """The next name is taken, by all who look for the run, also once the other folder is gone."""
    taken(place, "runner-7")
    mine = RunLock(RUN, 7)
    assert not RunLock(RUN, 7).is_held
    (place / "runner-7-a").symlink_to(place)
    assert RunLock(RUN, 7).socket_path.startswith(f"{place}/runner-7-b/")
    (place / "runner-7-a").unlink()
    assert mine.lock_path.startswith(f"{place}/runner-7-a/")


def test_all_of_a_run_meet_in_one_folder(place: Path) -> None:
    """Whatever is made or removed beside it later."""
    taken(place, f"runner-{os.getuid()}")
    lock = RunLock(RUN).acquire()
    assert lock is not None
    assert [each.name for each in place.iterdir() if each.stat().st_mode & 0o777 == 0o700] == [
        f"runner-{os.getuid()}-a"
    ]
    assert RunLock(RUN).is_held
    (place / f"runner-{os.getuid()}").rmdir()
    assert RunLock(RUN).is_held
    assert RunLock(RUN).try_lock() is None


def test_who_takes_all_names_is_named(place: Path) -> None:
    """Then nothing can be started here, and that is said."""
    for name in run_lock.FOLDER_NAMES:
        taken(place, name.format(os.getuid()))
    with pytest.raises(PermissionError, match="is not a private folder of ours"):
        RunLock(RUN).acquire()
