"""Duration of a verb on many hosts, against the tool that does the least of that.

    python -m benchmarks.verbs check [--hosts 1 4 8 16] [--pairs 5]
    python -m benchmarks.verbs exec --hosts 16 64

`check` against one `ssh HOST true` per host side by side; `exec -- true` against `clush -f 64` of
ClusterShell. On lab hosts (root, Linux), turn by turn, each with new processes and connections.
Prints a row per number of hosts: both medians in seconds, the median, least and greatest of what
the verb takes more and of its ratio in the pairs, and the CPU seconds of one time, of the verb and
in brackets of its floor: on this machine, and on a host.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.timing import span, taken, timed
from tests.lab.lab import Lab, make_lab


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("verb", choices=WAYS)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--new", action="store_true", help="hosts where nothing was launched yet")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        make_lab(max(options.hosts), keep=[Path(folder)]) as lab,
    ):
        if not options.new:  # so that hosts have our code
            lab.write_cluster(Path(folder))
            words = ["cluster=lab", "task.command=true", "task.entry=plain"]
            timed([sys.executable, "-m", "runner", *words, f"--config-dir={folder}"], Path(folder))
        names = " s  ".join(way.__name__ for way in WAYS[options.verb])
        print(f"hosts  {names} s  more s, ratio (least to greatest)  CPU s here, on a host")
        for count in options.hosts:
            print(row(options.verb, lab, Path(folder), count, options.pairs), flush=True)


def row(verb: str, lab: Lab, folder: Path, count: int, pairs: int) -> str:
    """Measure one number of hosts."""
    names = list(lab.hosts)[:count]
    ways = [way(lab, folder, names) for way in WAYS[verb]]
    for command in ways:
        taken(command, lab, names, folder)
    times = [[taken(command, lab, names, folder) for command in ways] for _ in range(pairs)]
    ours, theirs = zip(*times, strict=True)
    more = sorted(one.wall - other.wall for one, other in times)
    ratios = sorted(one.wall / other.wall for one, other in times)
    walls = [statistics.median(each.wall for each in way) for way in (ours, theirs)]
    here = [statistics.median(each.here for each in way) for way in (ours, theirs)]
    there = [statistics.median(each.there for each in way) for way in (ours, theirs)]
    return (
        f"{count:5}  {walls[0]:7.2f}  {walls[1]:5.2f}  {span(more)}, {span(ratios)}  "
        f"{here[0]:.2f} ({here[1]:.2f}), {there[0]:.3f} ({there[1]:.3f})"
    )


def check(lab: Lab, folder: Path, names: Sequence[str]) -> list[str]:
    """Our way to look at hosts."""
    return [*_runner(lab, folder, names, "check")]


def exec_true(lab: Lab, folder: Path, names: Sequence[str]) -> list[str]:
    """Our way to run a command."""
    return [*_runner(lab, folder, names, "exec"), "--", "true"]


def _runner(lab: Lab, folder: Path, names: Sequence[str], verb: str) -> list[str]:
    lab.write_cluster(folder, names=names)
    words = ["--cluster", "lab", "--config-dir", str(folder)]
    return [sys.executable, "-m", "runner", verb, *words]


def ssh(lab: Lab, folder: Path, names: Sequence[str]) -> list[str]:
    """Only the log-in, of all hosts side by side."""
    options = shlex.join(_options(lab))
    lines = [f"ssh {options} root@{lab[name].address} true &" for name in names]
    script = folder / "by_hand.sh"
    script.write_text("\n".join([*lines, "for job in $(jobs -p); do wait $job || exit 1; done\n"]))
    return ["bash", str(script)]


def clush(lab: Lab, folder: Path, names: Sequence[str]) -> list[str]:
    """ClusterShell, which starts one `ssh` per host."""
    del folder
    hosts = ",".join(lab[name].address for name in names)
    ours = str(Path(sys.executable).with_name("clush"))
    return [ours, "-f", "64", "-l", "root", "-o", shlex.join(_options(lab)), "-w", hosts, "true"]


def _options(lab: Lab) -> list[str]:
    return ["-F", "/dev/null", "-i", str(lab.key), "-o", f"UserKnownHostsFile={lab.known_hosts}"]


WAYS = {"check": (check, ssh), "exec": (exec_true, clush)}

if __name__ == "__main__":
    main()
