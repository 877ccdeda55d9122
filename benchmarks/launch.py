"""Launch latency: from the command to the last rank's first line, against hand-written ssh.

    python -m benchmarks.launch [--hosts 1 2 4 8] [--pairs 5] [--torch]

On lab hosts (root, Linux), turn by turn: `python -m runner`, with all its checks, and a shell
script as people write it, one `ssh HOST torchrun …` per host side by side, told beforehand what
the runner finds out: interface, address, port. `--torch` has the ranks import torch, as training
does. Prints a row per number of hosts: both medians in seconds, and the median, least and greatest
ratio of the pairs.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.lab.lab import Lab, make_lab

PORT = 29511
TIMEOUT_S = 120


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--torch", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        make_lab(max(options.hosts), keep=[Path(folder)]) as lab,
    ):
        first = "import torch\n" if options.torch else ""
        (Path(folder) / "first_line.py").write_text(
            first + "import time\nprint('here', flush=True)\ntime.sleep(0.5)\n"
        )
        print("hosts  runner s  ssh s  ratio (least to greatest)")
        for count in options.hosts:
            print(row(lab, Path(folder), count, options.pairs), flush=True)


def row(lab: Lab, folder: Path, count: int, pairs: int) -> str:
    """Measure one number of hosts."""
    names = list(lab.hosts)[:count]
    ways = (runner_command(lab, folder, names), ssh_command(lab, folder, names))
    for command in ways:
        first_lines(command, count, folder)
    times = [[first_lines(command, count, folder) for command in ways] for _ in range(pairs)]
    ratios = sorted(ours / theirs for ours, theirs in times)
    ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    middle = statistics.median(ratios)
    return (
        f"{count:5}  {ours:8.2f}  {theirs:5.2f}  {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def first_lines(command: Sequence[str], count: int, folder: Path) -> float:
    """Run a command; return the seconds until `count` ranks have printed their first line."""
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
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


def runner_command(lab: Lab, folder: Path, names: Sequence[str]) -> list[str]:
    """Our way."""
    lab.write_cluster(folder, names=names)
    return [
        *(sys.executable, "-m", "runner", "--config-dir", str(folder), "cluster=lab"),
        f"task.script={folder / 'first_line.py'}",
    ]


def ssh_command(lab: Lab, folder: Path, names: Sequence[str]) -> list[str]:
    """The hand-written way."""
    master = lab[names[0]].address
    lines = []
    for rank, name in enumerate(names):
        remote = (
            "GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1 "
            f"{sys.executable} -m torch.distributed.run --nnodes={len(names)} --nproc_per_node=1 "
            f"--node_rank={rank} --master_addr={master} --master_port={PORT} "
            f"{folder / 'first_line.py'}"
        )
        options = f"-F /dev/null -i {lab.key} -o UserKnownHostsFile={lab.known_hosts}"
        lines.append(f"ssh {options} root@{lab[name].address} {shlex.quote(remote)} &")
    script = folder / "by_hand.sh"
    script.write_text("\n".join([*lines, "for job in $(jobs -p); do wait $job || exit 1; done\n"]))
    return ["bash", str(script)]


if __name__ == "__main__":
    main()
