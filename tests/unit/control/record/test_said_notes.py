"""Notes of a project: said once, and again when they change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.control.record import run_index
from runner.control.record.said_notes import unsaid


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which they are kept."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return run_index.state_folder() / "said.json"


def test_a_note_is_said_once_and_again_when_it_is_news(
    said: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it had gone meanwhile: a GPU that fails for the second time; in each folder."""
    assert unsaid("plan", ["no GPU on a", "b"]) == ["no GPU on a", "b"]
    assert unsaid("plan", ["no GPU on a", "b"]) == []
    assert unsaid("other", ["b"]) == ["b"]
    assert unsaid("plan", ["no GPU on c", "b"]) == ["no GPU on c"]
    assert unsaid("plan", []) == []
    assert unsaid("plan", ["b"]) == ["b"]
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path / "runs")
    assert unsaid("plan", ["b"]) == ["b"]
    assert said.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", [b"{", b"[1]", b'{"%s": {"plan": 5}}', b"\x80"])
def test_a_file_that_cannot_be_read_is_written_anew(
    said: Path, tmp_path: Path, damage: bytes
) -> None:
    """The note is said, and nothing is raised; also where nothing can be kept."""
    said.parent.mkdir(parents=True)
    said.write_bytes(damage.replace(b"%s", bytes(tmp_path)))
    assert unsaid("plan", ["a"]) == ["a"]
    assert json.loads(said.read_text()) == {str(tmp_path): {"plan": ["a"]}}
    said.unlink()
    said.mkdir()
    assert [unsaid("plan", ["a"]) for _ in range(2)] == [["a"], ["a"]]


def test_a_program_is_told_nothing(said: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after `--` is not for us."""
    monkeypatch.setattr("sys.argv", ["runner", "ps", "--json"])
    assert (unsaid("plan", ["a"]), said.exists()) == ([], False)
    monkeypatch.setattr("sys.argv", ["runner", "task=x", "--", "--json"])
    assert unsaid("plan", ["a"]) == ["a"]
