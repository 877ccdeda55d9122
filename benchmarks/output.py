"""Cost of output: CPU of the controller while ranks print, shown in a pipe and on a terminal.

    python -m benchmarks.output [--ranks 16] [--lines 5000] [--seconds 10] [--rounds 3]

On 4 lab hosts (root, Linux): the ranks print so many lines of 100 bytes per second each. From the
controller's CPU time that of a run of silent ranks is taken off; what is left is shown as a share
of one core, and per line. A reader throws away what the controller writes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.cost import RANK
from benchmarks.logs import seconds
from benchmarks.timing import here
from tests.lab.lab import make_lab

HOSTS = 4


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    megabytes = int(options.ranks * options.lines * options.seconds * 100 / HOSTS) >> 20
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        make_lab(HOSTS, home_mb=options.rounds * 3 * megabytes + 200, keep=[Path(name)]) as lab,
    ):
        folder = Path(name)
        (folder / "rank.py").write_text(RANK)
        lab.write_cluster(folder / "conf", "lab", list(lab.hosts))
        words = [sys.executable, "-m", "runner", "cluster=lab", "task.script=rank.py"]
        words += ["task.entry=plain", f"cluster.nproc_per_node={options.ranks // HOSTS}"]
        print("where     of a core, %  microseconds per line")
        for where in ("pipe", "terminal"):
            extra = []
            for _ in range(options.rounds):
                used = {}
                for rate in (0, options.lines):
                    before = here()
                    argv = [*words, f"task.args_after=['{rate}','{options.seconds}']"]
                    seconds(argv, folder, terminal=where == "terminal")
                    used[rate] = here() - before
                extra.append(used[options.lines] - used[0])
            taken = statistics.median(extra)
            per_line = 1e6 * taken / (options.ranks * options.lines * options.seconds)
            print(f"{where:8}  {100 * taken / options.seconds:12.0f}  {per_line:21.1f}", flush=True)


if __name__ == "__main__":
    main()
