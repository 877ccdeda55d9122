"""Removal of containers: what is found by label is removed, until nothing is found twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.core.wire.container import Container
from runner.host import container
from runner.host.container import last_line, remove_container

ENGINE = """#!/bin/sh
echo "a warning" >&2
cd {folder} || exit
case $1 in
  ps) echo "$4" "$6" >> ../asked; ls ;;
  rm) shift 3; rm -f "$@"; [ ! -e ../late ] || mv ../late . ;;
esac
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Container:
    """A program that keeps containers as an engine does: as files of a folder."""
    monkeypatch.setattr(container, "LOOK_AGAIN_S", 0.01)
    (tmp_path / "kept").mkdir()
    program = tmp_path / "engine"
    program.write_text(ENGINE.format(folder=tmp_path / "kept"))
    program.chmod(0o700)
    return Container("docker", (str(program),), "train:1", labels=("runner.run=r",))


def test_what_shows_up_late_is_removed_too(engine: Container, tmp_path: Path) -> None:
    """By its id; what the engine warns of is no container."""
    (tmp_path / "kept" / "0a1").touch()
    (tmp_path / "late").touch()
    assert remove_container(engine, {"PATH": os.defpath}) == ""
    assert list((tmp_path / "kept").iterdir()) == []
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == 4
    assert asked[0].endswith("label=runner.run=r")


def test_an_engine_that_does_not_answer_proves_nothing(tmp_path: Path) -> None:
    """Its words are the reason."""
    gone = Container("docker", (str(tmp_path / "gone"),), "train:1")
    expected = "docker does not say that its container is gone: No such file or directory"
    assert remove_container(gone, {"PATH": os.defpath}) == expected


def test_advice_is_not_the_reason() -> None:
    """Engines print it last."""
    text = "x\ndocker: Error response from daemon: no room.\nSee 'docker run --help'.\n"
    assert last_line(text) == "no room."
