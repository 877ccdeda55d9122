"""Origins on record: written beside the run, whole, and never the run's concern."""

from __future__ import annotations

import stat
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from runner.control.history.bounded_reader import Problems
from runner.control.history.origins_reader import read_origins
from runner.control.record import origins_record
from runner.control.record.origins_record import OriginsRecorder
from runner.core.model.spec import LaunchRequest, Secret
from tests.golden.builders import request

PLACES = {"lost_s": "command line: lost_s=5", "task.args.a": "command line: task.args.a=s-1"}


def asked(folder: Path, places: Mapping[str, str]) -> LaunchRequest:
    """A launch that knows these places."""
    return replace(request(folder, secrets={"KEY": Secret("s-1")}), origins=lambda: places)


def test_it_is_written_once_for_its_user_alone(tmp_path: Path) -> None:
    """Another start changes nothing; a word that has a secret is shown without it."""
    recorder = OriginsRecorder(asked(tmp_path, PLACES), tmp_path)
    recorder.start()
    recorder.finish()
    (file,) = tmp_path.iterdir()
    assert (file.name, stat.S_IMODE(file.stat().st_mode)) == ("origins.json", 0o600)
    problems = Problems()
    assert read_origins(tmp_path, {}, [], problems) == {
        "lost_s": "command line: lost_s=5",
        "task.args.a": "command line: task.args.a=***",
    }
    assert problems.lines == []
    file.unlink()
    recorder.finish()
    assert not [*tmp_path.iterdir()]


def test_what_fails_leaves_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the places nor the disk are the run's concern."""

    def fail() -> Mapping[str, str]:
        raise RuntimeError

    OriginsRecorder(replace(asked(tmp_path, {}), origins=fail), tmp_path).finish()
    OriginsRecorder(request(tmp_path), tmp_path).finish()
    OriginsRecorder(asked(tmp_path, PLACES), tmp_path / "none").finish()
    assert not [*tmp_path.iterdir()]
    assert capsys.readouterr() == ("", "")


def test_the_end_waits_for_it_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may hang."""
    monkeypatch.setattr(origins_record, "JOIN_S", 0.01)
    released = threading.Event()

    def hang() -> Mapping[str, str]:
        released.wait(60)
        return PLACES

    recorder = OriginsRecorder(replace(asked(tmp_path, {}), origins=hang), tmp_path)
    recorder.finish()
    assert not [*tmp_path.iterdir()]
    released.set()
    monkeypatch.setattr(origins_record, "JOIN_S", 60)
    recorder.finish()
    assert (tmp_path / "origins.json").exists()
