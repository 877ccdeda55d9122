"""Who else could change what lies in a workdir: the rule of sshd's StrictModes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.host.storage.permissions import find_exposure, private_folder

STRANGER = 4711
BY_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A folder that only we can change."""
    tmp_path.chmod(0o755)
    return tmp_path


def exposed(workdir: Path | str) -> str:
    exposure = find_exposure(str(workdir))
    return f"{exposure} ({exposure.place})" if exposure else ""


def owned(path: Path, uid: int, mode: int) -> None:
    path.mkdir(exist_ok=True)
    path.chmod(mode)
    os.chown(path, uid, -1)


def test_a_folder_of_ours_is_safe_whether_it_is_there_or_not(top: Path) -> None:
    """Also below a sticky folder such as /tmp, and through a link of ours."""
    (top / "shared").mkdir()
    (top / "shared").chmod(0o1777)
    (top / "link").symlink_to("shared/../shared")
    for workdir in (top / "a/b", top / "shared/mine", top / "link/mine/../mine"):
        assert exposed(workdir) == ""
        workdir.mkdir(parents=True, exist_ok=True)
        assert exposed(workdir) == ""


@BY_ROOT
@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        (0o777, "can be written to by everybody"),
        (0o2770, "can be written to by its group"),
        (0o1777, ""),
    ],
)
def test_folders_above_may_be_writable_only_if_sticky(top: Path, mode: int, problem: str) -> None:
    """Else anybody could rename ours and put another in its place."""
    above = top / "scratch"
    above.mkdir()
    os.chown(above, -1, 1)
    above.chmod(mode)
    (above / "mine").mkdir(mode=0o700)
    assert exposed(above / "mine") == (f"{above} {problem} (above)" if problem else "")


def test_the_workdir_and_its_stores_are_for_one_user(top: Path) -> None:
    """A sticky bit is not enough there: others could make a store before we do."""
    workdir = top / "w"
    workdir.mkdir()
    workdir.chmod(0o1777)
    assert exposed(workdir) == f"{workdir} can be written to by everybody (inside)"
    workdir.chmod(0o700)
    (workdir / "tasks").mkdir()
    (workdir / "tasks").chmod(0o707)
    assert exposed(workdir) == f"{workdir}/tasks can be written to by everybody (inside)"


@BY_ROOT
def test_what_belongs_to_a_stranger_is_named(top: Path) -> None:
    """A folder above, the workdir, a store in it, all behind links too; what is closed to us."""
    theirs = top / "theirs"
    owned(theirs, STRANGER, 0o700)
    owned(theirs / "w", 0, 0o700)
    (top / "link").symlink_to("theirs")
    owned(top / "w", 0, 0o700)
    owned(top / "w" / "runs", STRANGER, 0o700)
    assert exposed(theirs / "w") == f"{theirs} belongs to the user {STRANGER} (above)"
    assert exposed(theirs) == f"{theirs} belongs to the user {STRANGER} (inside)"
    assert exposed(top / "link/w") == f"{theirs} belongs to the user {STRANGER} (above)"
    assert exposed(top / "w") == f"{top}/w/runs belongs to the user {STRANGER} (inside)"
    (top / "w/runs").rmdir()
    for store in ("pool", "keep"):
        (top / "w" / store).symlink_to(theirs / "w")
        assert exposed(top / "w") == f"{theirs} belongs to the user {STRANGER} (above)"
        (top / "w" / store).unlink()


def test_what_is_made_is_private_whatever_the_umask(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders that lead to it, too; the umask of other threads, a run perhaps, stays."""
    set_umask = os.umask
    umask = set_umask(0)
    monkeypatch.delattr(os, "umask")
    try:
        private_folder(f"{top}/new/w", "runs")
        (top / "open").mkdir(mode=0o777)
        with pytest.raises(PermissionError, match=r"open can be written to by everybody"):
            private_folder(f"{top}/open/w", "runs")
    finally:
        set_umask(umask)
    for name in ("new", "new/w", "new/w/runs"):
        assert (top / name).stat().st_mode & 0o777 == 0o700
