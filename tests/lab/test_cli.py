"""The command line as a process: what it imports, and what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.launching import ROOT
from tests.lab.waiting import PATIENCE

HEAVY = ("torch", "numpy", "fabric", "paramiko", "invoke", "rich", "ClusterShell", "asyncio")
PROBE = """
import sys
import types
from runner.cli.main import main
session = types.ModuleType("launch_session")
session.run = lambda request: 0
sys.modules["runner.verbs.launching.launch_session"] = session
code = main(sys.argv[1:])
print(*[name for name in {heavy!r} if name in sys.modules])
sys.exit(code)
"""


def python(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    task = folder / "conf" / "task" / "mine.yaml"
    task.parent.mkdir(parents=True)
    task.write_text("defaults: [base]\nscript: train.py\n")
    return folder


@pytest.mark.promise(9)
def test_composing_imports_nothing_heavy(folder: Path) -> None:
    """No torch, no SSH, no console: `--help` and dry runs answer at once."""
    done = python(folder, "-c", PROBE.format(heavy=HEAVY), "task=mine")
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


def test_no_module_is_taken_from_the_users_folder(folder: Path) -> None:
    """One of the project's files may have the name of one of Python's, or of a library of ours."""
    for name in ("difflib", "hydra", "logging", "queue", "random", "rich", "signal", "yaml"):
        (folder / f"{name}.py").write_text("raise ImportError('of the user')\n")
    (folder / "train.py").touch()
    for words in (["-m", "runner"], [str(Path(sys.executable).with_name("fab"))]):
        (folder / "fabfile.py").write_text("from runner.fab import *\n")
        done = python(folder, *words, "config", "--key=task.script", "--set=task=mine")
        assert (done.returncode, done.stdout) == (0, "train.py\n"), done


@pytest.mark.all
def test_a_terminal_without_unicode_gets_escapes(folder: Path) -> None:
    """What it prints is shown as far as that terminal can; output of programs stays as it is."""
    words = ("config", "task.args.note", "task=mine", "task.args.note='→'")
    done = python(folder, "-m", "runner", *words, PYTHONIOENCODING="ascii")
    assert (done.returncode, "\\u2192" in done.stdout) == (0, True), done
