"""Comparison of the runner with other launchers, on the same hosts, turn by turn.

    python -m benchmarks.peers [--rounds N] [--scenes launch kill …] [--launchers runner clush …]

On lab hosts (root, Linux): one that the launchers are started on, four nodes, and 64 for `many`.
Installs what it needs into --folder and from the system's packages, writes every measurement to
benchmarks/peers/results.json, and from it the table of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from benchmarks import compile_runner
from benchmarks.peers import tables
from benchmarks.peers.hosts import Cluster, LauncherError, make_cluster
from benchmarks.peers.install import UnavailableError, install, programs
from benchmarks.peers.launchers import LAUNCHERS, Launcher
from benchmarks.peers.results import FILE, Measurement, Record, Taking, Values
from benchmarks.peers.scenes import SCENES, Limits, Stage
from tests.lab.waiting import TimedOut

CACHE = Path.home() / ".cache" / "runner-benchmarks" / "peers"
ROUNDS = {"launch": 7, "lines": 3, "many": 5}
OTHER_ROUNDS = 3
WARM_FIRST = ("launch", "many")
NODES = 4


def main() -> None:
    """Measure, and write the record and the table."""
    names = [launcher.name for launcher in LAUNCHERS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, help="of each scene, in place of 7, 3 or 5")
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=list(SCENES))
    parser.add_argument("--launchers", nargs="+", choices=names, default=names)
    parser.add_argument("--many", type=int, default=64, help="hosts of the scene of that name")
    parser.add_argument("--lines", type=int, default=200_000, help="of each rank")
    parser.add_argument("--folder", type=Path, default=CACHE, help="for their environments")
    parser.add_argument("--results", type=Path, default=FILE)
    options = parser.parse_args()
    # Ignored, as for the background jobs of a script, it would be so for all launchers.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options.folder.mkdir(parents=True, exist_ok=True)
    compile_runner()
    record = new_record(options)
    if record.machine["load"] > 1:
        say(f"the machine is busy (load {record.machine['load']:.1f}): times will differ")
    found = [each for each in LAUNCHERS if each.name in options.launchers]
    found = [each for each in found if installed(each, options.folder, record)]
    few = [name for name in options.scenes if name != "many"]
    if few:
        with make_cluster(NODES, options.folder) as cluster:
            Session(cluster, record, options).play(few, found)
    if "many" in options.scenes:
        with make_cluster(options.many, options.folder) as cluster:
            Session(cluster, record, options).play(["many"], found)
    record.save(options.results)
    if options.results == FILE:
        tables.write(record)


def new_record(options: argparse.Namespace) -> Record:
    """Return a record that says what it is taken on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    machine = {
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "load": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version("torch"),
    }
    limits = asdict(Limits())
    settings = {"nodes": NODES, "many": options.many, "lines": options.lines, "limits": limits}
    return Record(datetime.now(timezone.utc).strftime("%Y-%m-%d"), machine, settings)


def installed(launcher: Launcher, folder: Path, record: Record) -> bool:
    """Install a launcher, and note its version, or why it takes no part."""
    say(f"installing {launcher.name}")
    try:
        record.launchers.append(Taking(launcher.name, launcher.starts, install(launcher, folder)))
    except UnavailableError as error:
        record.launchers.append(Taking(launcher.name, launcher.starts, "", str(error)))
        say(f"  left out: {error}")
        return False
    return True


class Session:
    """The scenes that are played with one number of hosts."""

    def __init__(self, cluster: Cluster, record: Record, options: argparse.Namespace) -> None:
        self.cluster, self.record, self.options = cluster, record, options

    def play(self, scenes: Sequence[str], launchers: Sequence[Launcher]) -> None:
        """Play each scene round by round, and in each round the launchers turn by turn."""
        for scene in scenes:
            taking = [each for each in launchers if takes_part(each, scene)]
            rounds = self.options.rounds or ROUNDS.get(scene, OTHER_ROUNDS)
            # Once unmeasured, so that hosts have our code and programs are in the page cache.
            first = 0 if scene in WARM_FIRST else 1
            for number in range(first, rounds + 1):
                shift = number % len(taking)
                for launcher in [*taking[shift:], *taking[:shift]]:
                    self.measure(scene, launcher, number)
                self.record.save(self.options.results)

    def measure(self, scene: str, launcher: Launcher, number: int) -> None:
        """Play a scene once, and note it unless its number is 0."""
        folder = programs(launcher, self.options.folder)
        stage = Stage(self.cluster, launcher, folder, Limits(), self.options.lines)
        try:
            values: Values = SCENES[scene](stage)
        except (LauncherError, TimedOut) as error:
            values = {"error": str(error)[-1200:]}
        finally:
            self.cluster.clear()
        say(f"{scene}, round {number}, {launcher.name}: {values}")
        if number:
            self.record.measurements.append(Measurement(scene, launcher.name, number, values))


def takes_part(launcher: Launcher, scene: str) -> bool:
    """Tell whether a launcher can play a scene, and is there for it."""
    can = launcher.execute if scene == "many" else launcher.launch
    return can is not None and (not launcher.only or scene in launcher.only)


def say(text: str) -> None:
    """Report progress."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
