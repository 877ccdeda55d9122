"""Removal of containers: what is found is what is removed, and what that says of the end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from runner.core.planning.container.docker import RECLAIM
from runner.host.container import removal
from runner.host.container.removal import NOT_RECLAIMED, Removal, remove_container
from tests.unit.host.container.fake_engine import FakeEngine

ENVIRON = {"PATH": os.defpath}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "LOOK_AGAIN_S", 0.01)


def test_what_another_attempt_left_is_removed_by_its_id(tmp_path: Path) -> None:
    """Its name is not that of the order; and what the engine warns of is no container."""
    engine = FakeEngine(tmp_path)
    engine.add("0a1", "0b2")

    assert remove_container(engine.container, ENVIRON) == Removal()
    assert engine.ids() == []
    assert "kill 0a1 0b2" in engine.asked()


def test_files_that_are_not_given_back_leave_the_end_verified(tmp_path: Path) -> None:
    """The record says so all the same."""
    engine = FakeEngine(tmp_path, reclaim="echo 'no image' >&2; exit 125")

    removed = remove_container(engine.container, ENVIRON)

    assert removed == Removal(note=f"{NOT_RECLAIMED}: no image")
    assert engine.asked()[-1] == "find"


def test_a_container_that_gives_files_back_does_not_stay(tmp_path: Path) -> None:
    """Its client was killed: the engine runs it on."""
    engine = FakeEngine(tmp_path, reclaim="touch reclaim; kill -KILL $$")

    removed = remove_container(engine.container, ENVIRON)

    assert (removed.problem, engine.ids()) == ("", [])


@pytest.mark.parametrize(
    ("error", "code"),
    [(FileNotFoundError(2, "gone"), 0), (PermissionError(1, "root is squashed"), "root is")],
)
def test_one_file_does_not_keep_the_others_from_being_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, code: object
) -> None:
    """Ranks that end may still remove theirs."""
    paths = sorted(str(tmp_path / name) for name in "abc")
    for path in paths:
        Path(path).touch()
    asked: list[str] = []

    def lchown(path: str, *_: int) -> None:
        asked.append(path)
        if len(asked) == 1:
            raise error

    monkeypatch.setattr(os, "lchown", lchown)
    monkeypatch.setattr(sys, "argv", ["-c", str(tmp_path), str(os.getuid() + 1), "7"])
    with pytest.raises(SystemExit) as end:
        exec(RECLAIM, {})  # noqa: S102 (as the container does)

    assert sorted(asked) == paths
    assert end.value.code == code or (code and str(code) in str(end.value.code))
