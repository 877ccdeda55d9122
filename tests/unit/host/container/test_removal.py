"""Removal of containers: what is found is what is removed, and what that says of the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.core.model.container import Container
from runner.host.container import removal
from runner.host.container.removal import NOT_RECLAIMED, Removal, remove_container

ENVIRON = {"PATH": os.defpath}
PROGRAM = """#!/bin/sh
echo "a warning" >&2
cd {folder} || exit
verb=$1; shift
echo "$verb" "$@" >> {log}
case $verb in
  find) ls ;;
  kill) ls "$@" >/dev/null ;;
  remove) rm -f "$@" ;;
  reclaim) echo "no image" >&2; exit 125 ;;
esac
"""


class FakeEngine:
    """A program that keeps containers as an engine does, by their ids: the files of a folder."""

    def __init__(self, tmp_path: Path, *, reclaims: bool = False) -> None:
        self.folder = tmp_path / "containers"
        self.folder.mkdir()
        for name in ("0a1", "0b2"):
            (self.folder / name).touch()
        self._log = tmp_path / "engine.log"
        program = tmp_path / "engine"
        program.write_text(PROGRAM.format(folder=self.folder, log=self._log))
        program.chmod(0o700)
        self.container = Container(
            engine="docker",
            start=(),
            name="runner-now",
            create=(str(program), "create"),
            kill=(str(program), "kill"),
            remove=(str(program), "remove"),
            find=(str(program), "find"),
            reclaim=(str(program), "reclaim") if reclaims else (),
        )

    def asked(self) -> list[str]:
        return self._log.read_text().splitlines()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "LOOK_AGAIN_S", 0.01)


def test_what_another_attempt_left_is_removed_by_its_id(tmp_path: Path) -> None:
    """Its name is not that of the order; and what the engine warns of is no container."""
    engine = FakeEngine(tmp_path)

    assert remove_container(engine.container, ENVIRON) == Removal()
    assert list(engine.folder.iterdir()) == []
    assert "kill 0a1 0b2" in engine.asked()


def test_files_that_are_not_given_back_leave_the_end_verified(tmp_path: Path) -> None:
    """The record says so all the same."""
    engine = FakeEngine(tmp_path, reclaims=True)

    removed = remove_container(engine.container, ENVIRON)

    assert removed == Removal(note=f"{NOT_RECLAIMED}: no image")
    assert engine.asked()[-1] == "find"
