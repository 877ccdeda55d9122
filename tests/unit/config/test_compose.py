"""Composing inside a program that uses Hydra itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.config.compose import open_composer
from runner.config.source import parse

ROOT = Path(__file__).parents[3]
PROGRAM = """
from dataclasses import dataclass

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from runner.cli.main import main as run


@dataclass
class Base:
    lr: float = 0.1


ConfigStore.instance().store(name="app", node={"defaults": [{"task": "base"}]})
ConfigStore.instance().store(group="task", name="base", node=Base)


@hydra.main(config_name="app", config_path=None, version_base="1.2")
def main(config: DictConfig) -> None:
    before = HydraConfig.get().job.name
    assert run(["task.script=train.py", "cluster=local", "dry_run=offline"]) == 0
    assert run(["config", "cluster.nodes"]) == 0
    assert HydraConfig.get().job.name == before == "program"
    assert ConfigStore.instance().load("task/base.yaml").node == {"lr": 0.1}
    assert not ConfigStore.instance().list("") or "runner_base.yaml" not in (
        ConfigStore.instance().list("")
    )
    print("composed", config.task.lr)


main()
main()
"""


def test_a_program_under_hydra_main_can_compose(tmp_path: Path) -> None:
    """Hydra's global state is as it was afterwards: its config, its store, its version."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "train.py").touch()
    done = subprocess.run(
        [sys.executable, "program.py", "hydra.run.dir=."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HYDRA_FULL_ERROR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("composed 0.1") == 2
    assert done.stdout.count("train.py") == 2


@pytest.mark.parametrize("word", ["true", "True"])
def test_a_program_called_true(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the name that was written, also in a file; as an argument it is a flag."""
    monkeypatch.chdir(tmp_path)
    with open_composer() as composer:
        task = composer.compose([f"task.command={word}", "cluster=local"]).spec.task
    assert (task.name, task.target) == (word, word)
    content = parse(f"command: {word}\nargs: {{command: {word}}}", Path("x")).content
    assert content == {"command": word, "args": {"command": True}}
