"""Fan-out of a release over a slow line: hosts that serve each other, against a copy to each.

    python -m benchmarks.fan_out [--hosts 4 16] [--megabytes 20] [--mbit 100] [--rounds 3]

On lab hosts (root, Linux): `deploy` with `deploy.fan_out=auto` and `off`, turn by turn, of one file
of random bytes, while `tc` gives the line from this machine to all hosts together so many Mbit/s.
Prints medians in seconds, their ratio with its range, and how many copies left this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.timing import ratio, timed
from tests.lab.lab import Lab, make_lab

WAYS = ("auto", "off")
MB = 1_000_000


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--mbit", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("hosts  fan-out s  to each s  ratio (least to greatest)  copies from here")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        project = Path(folder) / "project"
        project.mkdir()
        (project / "data").write_bytes(os.urandom(options.megabytes * MB))
        size = options.megabytes * MB
        for count in options.hosts:
            with make_lab(count, home_mb=3 * options.megabytes + 64, keep=[Path(folder)]) as lab:
                shape(lab, options.mbit)
                print(row(lab, project, size, options.rounds), flush=True)


def shape(lab: Lab, mbit: int) -> None:
    """Limit what leaves this machine for the lab; the limit goes with the lab's interface."""
    limit = f"tbf rate {mbit}mbit burst 64kb latency 50ms"
    subprocess.run(["tc", "qdisc", "add", "dev", lab.uplink, "root", *limit.split()], check=True)


def row(lab: Lab, project: Path, size: int, rounds: int) -> str:
    """Measure one number of hosts."""
    lab.write_cluster(project.parent)
    words = [sys.executable, "-m", "runner", "deploy", "--json", "cluster=lab"]
    words += ["--config-dir", str(project.parent)]
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    copies: dict[str, float] = {}
    for number in range(rounds):
        for way in WAYS if number % 2 else reversed(WAYS):
            for host in lab.hosts.values():
                host.sh("rm -rf ~/.runner/releases")
            took, out = timed([*words, f"deploy.fan_out={way}"], project)
            seconds[way].append(took)
            sent = json.loads(out)["sent"].values()
            copies[way] = sum(each or 0 for each in sent) / size
    medians = "  ".join(f"{statistics.median(seconds[way]):9.2f}" for way in WAYS)
    copied = ", ".join(f"{copies[way]:.0f}" for way in WAYS)
    return f"{len(lab.hosts):5}  {medians}  {ratio(*seconds.values()):25}  {copied}"


if __name__ == "__main__":
    main()
