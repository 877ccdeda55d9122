"""Where the record of a run is found, from any folder of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.control.record import run_index
from runner.control.record.run_store import RunStore
from tests.golden.builders import request


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user stands in a project's folder, and has run nothing before."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def record(folder: Path, run_id: str) -> Path:
    """The record of a run in that folder."""
    store = RunStore(folder)
    store.reserve()
    store.create(request(folder, run_id=run_id))
    store.unlock()
    return folder


def test_a_record_elsewhere_is_found_like_one_below_runs(project: Path, tmp_path: Path) -> None:
    """`run_dir` puts it anywhere, under any name; its id and `latest` lead to it."""
    record(project / "runs" / "first", "first")
    elsewhere = record(tmp_path / "data" / "experiment", "second")
    assert run_index.record_folder("first") == project / "runs" / "first"
    assert run_index.record_folder("second") == elsewhere
    assert run_index.record_folder("latest") == elsewhere
    assert run_index.record_folder("third") is None


def test_an_id_is_found_from_any_folder_and_latest_is_the_folders(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that we print runs in another terminal, too."""
    record(project / "runs" / "first", "first")
    monkeypatch.chdir(tmp_path)
    assert run_index.record_folder("first") == project / "runs" / "first"
    assert run_index.record_folder("latest") is None


def test_a_record_outside_leaves_runs_ignored(project: Path, tmp_path: Path) -> None:
    """The folder that only holds `latest` is no code either."""
    record(tmp_path / "data" / "first", "first")
    assert {path.name for path in (project / "runs").iterdir()} == {".gitignore", "latest"}


def test_a_record_that_was_removed_is_none(tmp_path: Path) -> None:
    """Its links are left."""
    gone = record(tmp_path / "data" / "first", "first")
    (gone / "contact.json").unlink()
    assert run_index.record_folder("first") is None
    assert run_index.record_folder("latest") is None


def test_a_disk_that_cannot_be_written_costs_the_index_only(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record itself is what counts."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert record(project / "runs" / "first", "first").is_dir()
    assert run_index.record_folder("first") == project / "runs" / "first"
