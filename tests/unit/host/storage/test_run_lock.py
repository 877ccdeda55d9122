"""The private folder of locks and sockets, in a place where anybody may make folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.host.storage import run_lock
from runner.host.storage.run_lock import Doorway


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /tmp of its own."""
    monkeypatch.setattr(run_lock, "PLACE", str(tmp_path))
    return tmp_path


def taken(place: Path, name: str) -> None:
    """Have somebody else's folder there: one that is not private is as good as that."""
    (place / name).mkdir()
    (place / name).chmod(0o755)


def test_a_folder_of_somebody_elses_is_left_alone(place: Path) -> None:
    """The next name is taken, by all who look for the run, also once the other folder is gone."""
    taken(place, "runner-7")
    mine = Doorway("run", "a", 7)
    assert not Doorway("run", "a", 7).held
    (place / "runner-7-a").symlink_to(place)
    assert Doorway("run", "a", 7).socket_path.startswith(f"{place}/runner-7-b/")
    (place / "runner-7-a").unlink()
    assert mine.lock_path.startswith(f"{place}/runner-7-a/")


def test_all_of_a_run_meet_in_one_folder(place: Path) -> None:
    """Whatever is made or removed beside it later."""
    taken(place, f"runner-{os.getuid()}")
    lock = Doorway("run", "a").lock_for_life()
    assert lock is not None
    assert [each.name for each in place.iterdir() if each.stat().st_mode & 0o777 == 0o700] == [
        f"runner-{os.getuid()}-a"
    ]
    assert Doorway("run", "a").held
    (place / f"runner-{os.getuid()}").rmdir()
    assert Doorway("run", "a").held
    assert Doorway("run", "a").lock() is None


def test_who_takes_all_names_is_named(place: Path) -> None:
    """Then nothing can be started here, and that is said."""
    for name in run_lock.NAMES:
        taken(place, name.format(os.getuid()))
    with pytest.raises(PermissionError, match="is not a private folder of ours"):
        Doorway("run", "a").lock_for_life()
