"""`make run`, with a program that prints its arguments in place of Python."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lab.launching import ROOT


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
def test_make_run_says_what_it_does_and_what_comes_next(tmp_path: Path) -> None:
    """It shows what pip does, starts the training, and its last line is `init`."""
    python, venv = tmp_path / "python", tmp_path / "venv"
    python.write_text(
        f'#!/bin/sh\necho "did $*"\n'
        f'case "$2" in venv) mkdir -p {venv}/bin; cp "$0" {venv}/bin; esac\n'
    )
    python.chmod(0o755)
    argv = ["make", "--no-print-directory", "run", f"PYTHON={python}", f"VENV={venv}", "ARGS=a=b"]
    done = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True)
    did = [line for line in done.stdout.splitlines() if line.startswith("did ")]
    assert [line.split()[2] for line in did] == ["venv", "pip", "runner"], done
    assert "--quiet" not in did[1]
    assert did[2] == "did -m runner a=b"
    first, last = done.stdout.splitlines()[0], done.stdout.splitlines()[-1]
    assert (first.startswith("making the environment"), last) == (True, f"  {venv}/bin/runner init")
