"""Log throughput: 4 ranks of 200,000 lines of 100 bytes, against hand-written ssh + torchrun.

    python -m benchmarks.logs [--lines 200000] [--pairs 3]

On lab hosts (root, Linux), turn by turn, into a pipe and on a terminal (a pty whose other end
throws everything away): the seconds from the command to its end. `tmux` would add its own second.
"""

from __future__ import annotations

import argparse
import os
import pty
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import environment
from benchmarks.launch import runner_command, ssh_command
from tests.lab.lab import make_lab

HOSTS = 4
TIMEOUT_S = 300


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        make_lab(HOSTS, home_mb=1500, keep=[Path(name)]) as lab,
    ):
        folder = Path(name)
        (folder / "first_line.py").write_text(
            "import os, sys\nrank = os.environ['RANK']\n"
            f"for number in range({options.lines}):\n"
            "    sys.stdout.write(f'{rank} {number:08d} '.ljust(99, 'x') + '\\n')\n"
        )
        names = list(lab.hosts)
        ways = (runner_command(lab, folder, names, 1), ssh_command(lab, folder, names, 1))
        print("where     runner s  ssh s  ratio (least to greatest)")
        for where in ("pipe", "terminal"):
            times = [
                [seconds(way, folder, terminal=where == "terminal") for way in ways]
                for _ in range(options.pairs)
            ]
            ratios = sorted(ours / theirs for ours, theirs in times)
            ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
            span = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            print(f"{where:8}  {ours:8.2f}  {theirs:5.2f}  {span}", flush=True)


def seconds(argv: Sequence[str], folder: Path, *, terminal: bool) -> float:
    """Run a command to its end while somebody reads what it writes."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    env = environment(TERM="xterm-256color")
    began = time.monotonic()
    process = subprocess.Popen(
        argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        while os.read(ours, 1 << 16):
            pass
    except OSError:  # what a terminal says when nobody has it open any more
        pass
    os.close(ours)
    if process.wait(TIMEOUT_S) != 0:
        sys.exit(f"{shlex.join(argv)}: exit {process.returncode}")
    return time.monotonic() - began


if __name__ == "__main__":
    main()
