"""Launch latency: from the command to the last rank's first line, against hand-written ssh.

    python -m benchmarks.launch [--hosts 1 2 4 8] [--ranks 1] [--pairs 5] [--first here]

On lab hosts (root, Linux), turn by turn: `python -m runner`, with all its checks, the same with
`task.preload`, and a shell script as people write it, one `ssh HOST torchrun …` per host side by
side, told beforehand what the runner finds out: interface, address, port. The first line of a rank
comes at once (`here`), after it has imported torch, as training does (`import`), or after the first
step of an optimizer (`step`). Prints a row per number of hosts: the medians in seconds, the median,
least and greatest ratio of the pairs, and the CPU seconds of one launch until its end, each in the
order of the ways: on this machine, and on a host.
"""

from __future__ import annotations

import argparse
import functools
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import environment
from benchmarks.timing import span, taken
from tests.lab.lab import Lab, make_lab

PORT = 29511
TIMEOUT_S = 120
FIRST = {
    "here": "",
    "import": "import torch\n",
    "step": """\
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
""",
}
"""The text of a rank's program before its first line."""


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--ranks", type=int, default=1, help="on each host")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--first", choices=FIRST, default="here")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        make_lab(max(options.hosts), keep=[Path(folder)]) as lab,
    ):
        (Path(folder) / "first_line.py").write_text(
            FIRST[options.first] + "import time\nprint('here', flush=True)\ntime.sleep(0.5)\n"
        )
        print(
            "hosts  runner s  preload s  ssh s  ratios (least to greatest)  CPU s here, on a host"
        )
        for count in options.hosts:
            print(row(lab, Path(folder), count, options.ranks, options.pairs), flush=True)


def row(lab: Lab, folder: Path, count: int, ranks: int, pairs: int) -> str:
    """Measure one number of hosts."""
    names = list(lab.hosts)[:count]
    ways = (
        runner_command(lab, folder, names, ranks),
        [*runner_command(lab, folder, names, ranks), "task.preload=true"],
        ssh_command(lab, folder, names, ranks),
    )
    run = functools.partial(first_lines, count * ranks)
    for command in ways:
        run(command, folder)
    times = [[taken(command, lab, names, folder, run) for command in ways] for _ in range(pairs)]
    *ours, theirs = zip(*times, strict=True)
    walls = [statistics.median(each.wall for each in way) for way in (*ours, theirs)]
    ratios = [
        sorted(one.wall / other.wall for one, other in zip(way, theirs, strict=True))
        for way in ours
    ]
    here = [statistics.median(each.here for each in way) for way in (*ours, theirs)]
    there = [statistics.median(each.there for each in way) for way in (*ours, theirs)]
    return (
        f"{count:5}  {walls[0]:8.2f}  {walls[1]:9.2f}  {walls[2]:5.2f}  "
        f"{', '.join(map(span, ratios))}  "
        f"{'/'.join(f'{s:.1f}' for s in here)}, {'/'.join(f'{s:.1f}' for s in there)}"
    )


def first_lines(count: int, command: Sequence[str], folder: Path) -> float:
    """Run a command; return the seconds until `count` ranks have printed their first line."""
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    seen, took = 0, 0.0
    for line in process.stdout:
        seen += line.count("here")  # by hand, two ranks may share a line
        if seen == count and not took:
            took = time.monotonic() - began
    if process.wait(TIMEOUT_S) != 0 or seen != count:
        sys.exit(f"{shlex.join(command)}: exit {process.returncode}, {seen} of {count} ranks")
    return took


def runner_command(lab: Lab, folder: Path, names: Sequence[str], ranks: int) -> list[str]:
    """Our way."""
    lab.write_cluster(folder, names=names)
    return [
        *(sys.executable, "-m", "runner", "--config-dir", str(folder), "cluster=lab"),
        *(f"task.script={folder / 'first_line.py'}", f"cluster.nproc_per_node={ranks}"),
    ]


def ssh_command(lab: Lab, folder: Path, names: Sequence[str], ranks: int) -> list[str]:
    """The hand-written way."""
    master = lab[names[0]].address
    lines = []
    for rank, name in enumerate(names):
        remote = (
            "GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1 "
            f"{sys.executable} -m torch.distributed.run --nnodes={len(names)} "
            f"--nproc_per_node={ranks} --node_rank={rank} "
            f"--master_addr={master} --master_port={PORT} "
            f"{folder / 'first_line.py'}"
        )
        options = f"-F /dev/null -i {lab.key} -o UserKnownHostsFile={lab.known_hosts}"
        lines.append(f"ssh {options} root@{lab[name].address} {shlex.quote(remote)} &")
    script = folder / "by_hand.sh"
    script.write_text("\n".join([*lines, "for job in $(jobs -p); do wait $job || exit 1; done\n"]))
    return ["bash", str(script)]


if __name__ == "__main__":
    main()
