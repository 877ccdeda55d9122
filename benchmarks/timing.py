"""Timing helpers that several benchmarks share."""

from __future__ import annotations

import os
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import environment
from tests.lab.lab import Lab
from tests.lab.waiting import wait_until

TIMEOUT_S = 300
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Took:
    """What one command took, in seconds.

    Attributes:
        wall: From its start to its end.
        here: CPU time of its processes on this machine.
        there: CPU time on each host, on average.
    """

    wall: float
    here: float
    there: float


def timed(argv: Sequence[str], folder: Path) -> tuple[float, str]:
    """Run a command to its end; return its seconds, and what it printed.

    A command that fails ends the benchmark with what it said.
    """
    began = time.monotonic()
    done = subprocess.run(
        argv,
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{shlex.join(argv)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return time.monotonic() - began, done.stdout


def span(those: Sequence[float]) -> str:
    """Return median, least and greatest of sorted numbers."""
    return f"{statistics.median(those):.2f} ({those[0]:.2f} to {those[-1]:.2f})"


def taken(
    command: Sequence[str],
    lab: Lab,
    names: Sequence[str],
    folder: Path,
    run: Callable[[Sequence[str], Path], float] = lambda command, folder: timed(command, folder)[0],
) -> Took:
    """Run a command on hosts by `run`, which returns its seconds; return what it took."""
    before, used = there(lab, names), here()
    wall = run(command, folder)
    used = here() - used
    wait_until(lambda: not lab.leftovers(), "the hosts to be idle")
    return Took(wall, used, (there(lab, names) - before) / len(names))


def here() -> float:
    """Return the CPU seconds of all commands so far."""
    told = resource.getrusage(resource.RUSAGE_CHILDREN)
    return told.ru_utime + told.ru_stime


def there(lab: Lab, names: Sequence[str]) -> float:
    """Return the CPU seconds of the hosts so far: of sshd, and of all that ended below it."""
    ticks = 0
    for name in names:
        stat = lab[name].sh("cat /proc/1/stat").rpartition(")")[2].split()
        ticks += sum(map(int, stat[11:15]))
    return ticks / TICKS


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the median of the ratios, and their range."""
    ratios = sorted(our / their for our, their in zip(ours, theirs, strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
