"""Cost of the runner while ranks train: CPU and memory of a host, and time of the training.

    python -m benchmarks.cost [--minutes 5] [--lines 5000] [--pairs 6] [--epochs 3]

First, on two lab hosts (root, Linux), ranks that print so many lines of 100 bytes per second, and
none: the CPU share of one core and the memory of supervisor, guardian, link and controller. Then
the shipped resnet18 on this machine under the runner and under bare torchrun, turn by turn: how
long the epochs took, as the task itself says.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import environment
from tests.lab.lab import Lab, make_lab
from tests.lab.waiting import wait_until

TIMEOUT_S = 600
TICKS = os.sysconf("SC_CLK_TCK")
RANK = """
import sys, time
rate, until = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
print("up", flush=True)
began = time.monotonic()
printed = 0
while time.monotonic() < until:
    due = int((time.monotonic() - began) * rate)
    for number in range(printed, due):
        sys.stdout.write(f"{number:08d} ".ljust(99, "x") + "\\n")
    sys.stdout.flush()
    printed = due
    time.sleep(0.02)
"""


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    if options.minutes:
        shares(options.lines, 60 * options.minutes)
    if options.pairs:
        steps(options.pairs, options.epochs)


def shares(lines: int, seconds: float) -> None:
    """Print what our processes take while ranks print, and while they do not."""
    bytes_each = int(100 * lines * seconds) >> 20
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        make_lab(2, home_mb=bytes_each + 200, keep=[Path(name)]) as lab,
    ):
        folder = Path(name)
        (folder / "rank.py").write_text(RANK)
        lab.write_cluster(folder / "conf", "lab", list(lab.hosts))
        print("lines/s  process      CPU %  memory MiB")
        for rate in (lines, 0):
            for who, (cpu, memory) in taken(lab, folder, rate, seconds).items():
                print(f"{rate:7}  {who:10}  {cpu:6.2f}  {memory:10.1f}", flush=True)


def taken(lab: Lab, folder: Path, rate: int, seconds: float) -> dict[str, tuple[float, float]]:
    """Run it once; return for each of our processes its CPU share and its own memory."""
    argv = [
        *(sys.executable, "-m", "runner", "cluster=lab", "task.script=rank.py"),
        f"task.args_after=['{rate}','{seconds + 30}']",
    ]
    with (folder / "err").open("w") as err:
        controller = subprocess.Popen(
            argv,
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=err,
        )
    try:
        ours = {**roles(lab, "node1", folder), "controller": controller.pid}
        time.sleep(3)
        before, began = {who: ticks(pid) for who, pid in ours.items()}, time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - began
        return {
            who: (100 * (ticks(pid) - before[who]) / TICKS / passed, memory_mib(pid))
            for who, pid in ours.items()
        }
    finally:
        controller.terminate()
        controller.wait(TIMEOUT_S)
        for host in lab.hosts.values():
            host.sh("rm -rf ~/.runner/runs")


def roles(lab: Lab, node: str, folder: Path) -> dict[str, int]:
    """Wait for the ranks; return our processes of that node, by what they are."""
    wait_until(
        lambda: "rank_started" in lab[node].sh("cat ~/.runner/runs/*/*/events.jsonl", check=False),
        "the ranks",
        60,
        detail=(folder / "err").read_text,
    )
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if words[1:5] == [b"-I", b"-X", b"utf8", b"-c"] and node.encode() in words:
            found[int(entry.name)] = parent
    (supervisor,) = (pid for pid, parent in found.items() if parent in found)
    guardian = found[supervisor]
    (agent,) = found.keys() - {supervisor, guardian}
    return {"supervisor": supervisor, "guardian": guardian, "agent": agent}


def ticks(pid: int) -> int:
    """Return the CPU time of a process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def memory_mib(pid: int) -> float:
    """Return the memory that is a process's share of what it uses with others."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def steps(pairs: int, epochs: int) -> None:
    """Print how long the epochs of resnet18 take under the runner, and under torchrun alone."""
    script = Path("runner/tasks/resnet18.py").resolve()
    argv = [sys.executable, "-m"]
    ways = (
        [*argv, "runner", f"task.args.epochs={epochs}"],
        [
            *(*argv, "torch.distributed.run", "--standalone", "--nproc_per_node=2"),
            *(str(script), "--backend", "gloo", "--epochs", str(epochs)),
        ],
    )
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        times = []
        for number in range(pairs):
            turn = ways if number % 2 == 0 else ways[::-1]
            both = {id(way): trained(way, folder) for way in turn}
            times.append(tuple(both[id(way)] for way in ways))
    ratios = sorted(ours / theirs for ours, theirs in times)
    ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"epochs  runner s  torchrun s  ratio (least to greatest)  {pairs} pairs")
    span = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
    print(f"{epochs:6}  {ours:8.1f}  {theirs:10.1f}  {span}")
    print("each:", *(f"{ratio:.3f}" for ratio in ratios))


def trained(argv: list[str], folder: str) -> float:
    """Train; return the seconds that the task says its epochs took."""
    done = subprocess.run(
        argv,
        cwd=folder,
        env=environment(OMP_NUM_THREADS="1"),
        check=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    found = re.search(r"trained \d+ epochs in ([\d.]+) s", done.stdout)
    assert found, done.stdout
    return float(found[1])


if __name__ == "__main__":
    main()
