"""The command line as a process: what it imports, and what it prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "numpy", "fabric", "paramiko", "invoke", "rich", "ClusterShell", "asyncio")
PROBE = """
import sys
from runner.cli.main import for_each_run
code = for_each_run(sys.argv[1:], lambda run: 0)
print(*[name for name in {heavy!r} if name in sys.modules])
sys.exit(code)
"""


def python(
    folder: Path, *words: str, path: Path = ROOT, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in a user's folder."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(path), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with a task of theirs, and the installed package beside it."""
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


def test_help_tells_what_there_is(folder: Path) -> None:
    """Our own words, with the groups as they are here."""
    done = python(folder, "-m", "runner", "task=mine", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Starts a PyTorch job on every machine of a cluster")
    assert "cluster: base, lab3, local\n" in done.stdout
    assert "--config-dir DIR" in done.stdout
    done = python(folder, "-m", "runner", "--hydra-help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Hydra (")


def test_the_configuration_can_be_looked_at(folder: Path) -> None:
    """As YAML, whole or in part; a part that is not there is exit 2."""
    done = python(folder, "-m", "runner", "task=mine", "--cfg", "job", "--package", "task")
    assert done.returncode == 0
    assert yaml.safe_load(done.stdout)["script"] == "train.py"
    done = python(folder, "-m", "runner", "task=mine", "--cfg", "job", "--package", "nope")
    assert (done.returncode, done.stderr) == (2, "package 'nope' not found in config\n")


def test_the_search_order_can_be_looked_at(folder: Path) -> None:
    """`--info searchpath` shows the folders in the order that holds."""
    (folder / "given").mkdir()
    words = ("-m", "runner", "task=mine", "--config-dir", "given", "--info", "searchpath")
    lines = python(folder, *words).stdout.splitlines()
    paths = [line.split("|")[2].strip() for line in lines if "file://" in line]
    folders = (folder / "given", folder / "conf", ROOT / "conf")
    assert paths == [f"file://{path}" for path in folders]


def test_an_installed_package_brings_its_yaml(folder: Path, tmp_path: Path) -> None:
    """In a wheel, `conf` is inside the package."""
    site = tmp_path / "site"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "runner", site / "runner", ignore=ignore)
    shutil.copytree(ROOT / "conf", site / "runner" / "conf")
    done = python(folder, "-c", PROBE.format(heavy=HEAVY), "task=mine", path=site)
    assert (done.returncode, done.stderr) == (0, "")
    words = ("-m", "runner", "task=mine", "--info", "searchpath")
    assert f"file://{site}/runner/conf" in python(folder, *words, path=site).stdout


def test_a_mistake_leaves_nothing_behind(folder: Path) -> None:
    """One message, exit 2, no traceback, no files."""
    before = set(folder.rglob("*"))
    done = python(folder, "-m", "runner", "task=mine", "cluster.backnd=gloo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: cluster.backnd: there is no such key; near it: backend\n")
    assert done.stderr.endswith("\n    did you mean cluster.backend?\n")
    assert set(folder.rglob("*")) == before


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode_gets_escapes(folder: Path, encoding: str) -> None:
    """What it prints is shown as far as that terminal can; output of programs stays as it is."""
    words = ("config", "task.args.note", "task=mine", "task.args.note='→'")
    done = python(folder, "-m", "runner", *words, PYTHONIOENCODING=encoding)

    assert (done.returncode, "\\u2192" in done.stdout) == (0, True), done
