"""Timing helpers that several benchmarks share."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TIMEOUT_S = 300


def timed(argv: Sequence[str], folder: Path) -> tuple[float, str]:
    """Run a command to its end; return its seconds, and what it printed.

    A command that fails ends the benchmark with what it said.
    """
    began = time.monotonic()
    done = subprocess.run(
        argv,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{shlex.join(argv)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return time.monotonic() - began, done.stdout
