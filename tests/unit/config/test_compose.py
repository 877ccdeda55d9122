"""The name of a program that YAML may take for something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.config.compose import open_composer
from runner.config.source import parse


@pytest.mark.parametrize("word", ["true", "True"])
def test_a_program_called_true(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the name that was written, also in a file; as an argument it is a flag."""
    monkeypatch.chdir(tmp_path)
    with open_composer() as composer:
        task = composer.compose([f"task.command={word}", "cluster=local"]).spec.task
    assert (task.name, task.target) == (word, word)
    content = parse(f"command: {word}\nargs: {{command: {word}}}", Path("x")).content
    assert content == {"command": word, "args": {"command": True}}
