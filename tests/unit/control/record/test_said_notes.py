"""Notes of a project: said once, and again when they change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.control.record.said_notes import unsaid


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which a project keeps them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs" / ".said.json"


def test_a_note_is_said_once_and_again_when_it_is_news(said: Path) -> None:
    """Also if it had gone meanwhile: a GPU that fails for the second time."""
    assert unsaid("plan", ["no GPU on a", "b"]) == ["no GPU on a", "b"]
    assert unsaid("plan", ["no GPU on a", "b"]) == []
    assert unsaid("other", ["b"]) == ["b"]
    assert unsaid("plan", ["no GPU on c", "b"]) == ["no GPU on c"]
    assert unsaid("plan", []) == []
    assert unsaid("plan", ["b"]) == ["b"]
    assert said.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["{", "[1]", '"x"', '{"plan": 5}', "\udc80"])
def test_a_file_that_cannot_be_read_is_written_anew(said: Path, damage: str) -> None:
    """The note is said, and nothing is raised."""
    said.write_bytes(damage.encode(errors="surrogateescape"))
    assert unsaid("plan", ["a"]) == ["a"]
    assert json.loads(said.read_text()) == {"plan": ["a"]}


def test_where_nothing_can_be_kept_it_is_said_each_time(said: Path) -> None:
    """No folder is made for it."""
    said.parent.rmdir()
    assert [unsaid("plan", ["a"]) for _ in range(2)] == [["a"], ["a"]]
    assert not said.parent.exists()


def test_a_program_is_told_nothing(said: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after `--` is not for us."""
    monkeypatch.setattr("sys.argv", ["runner", "ps", "--json"])
    assert (unsaid("plan", ["a"]), said.exists()) == ([], False)
    monkeypatch.setattr("sys.argv", ["runner", "task=x", "--", "--json"])
    assert unsaid("plan", ["a"]) == ["a"]
