"""What a launch on many hosts takes from the controller: time, CPU, memory, threads, descriptors.

    python -m benchmarks.many_hosts [--hosts 16 64 128 256 512] [--times 3] [--seconds 3]

The hosts are one process on this machine that speaks SSH and answers as a lab host did that was
asked first (root, Linux; `benchmarks/far_end.py`), so that what is seen is the controller. Ranks
print a line and run for some seconds. Prints a row per number of hosts, with medians: the seconds
until the plan was made, from there until every rank had started, and from the end of the ranks
until that of the launch; its CPU seconds; and its peak memory in MB, threads and descriptors. Then,
by a straight line through the rows, CPU and memory of each further host.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import asyncssh

from benchmarks import environment
from benchmarks.far_end import Recording
from runner.core.wire.codec import Frame
from tests.lab.waiting import wait_until

TIMEOUT_S = 180
FACTS_FILE = "facts"


@dataclass
class Launched:
    """What one launch took: seconds, CPU seconds, MB, numbers."""

    plan: float
    start: float
    end: float
    cpu: float
    memory: float = 0.0
    threads: int = 0
    descriptors: int = 0


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[16, 64, 128, 256, 512])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="that the ranks run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        far_end, port = start_far_end(folder, record(folder), options.seconds)
        try:
            rows = {n: row(folder, port, n, options) for n in options.hosts}
        finally:
            far_end.kill()
    if len(rows) > 1:
        least, most = min(rows), max(rows)
        each = 1 / (most - least)
        cpu = 1000 * each * (rows[most].cpu - rows[least].cpu)
        memory = each * (rows[most].memory - rows[least].memory)
        print(f"each further host: {cpu:.1f} ms of CPU, {memory:.2f} MB")


def row(folder: Path, port: int, count: int, options: argparse.Namespace) -> Launched:
    """Measure one number of hosts, and print it."""
    write_cluster(folder, port, count)
    found = [launch(folder, options.seconds) for _ in range(options.times)]
    middle = Launched(
        **{
            name: statistics.median(getattr(each, name) for each in found)
            for name in asdict(found[0])
        }
    )
    if count == options.hosts[0]:
        print("hosts   plan  start    end  CPU s    MB  threads  descriptors")
    times = "  ".join(f"{s:5.2f}" for s in (middle.plan, middle.start, middle.end, middle.cpu))
    peaks = f"{middle.memory:4.0f}  {middle.threads:7.0f}  {middle.descriptors:11.0f}"
    print(f"{count:5}  {times}  {peaks}", flush=True)
    return middle


def launch(folder: Path, seconds: float) -> Launched:
    """Launch once, and look at the controller while it runs."""
    marks: dict[str, float] = {}
    began = time.monotonic()
    words = ["cluster=many", "task.command=true", "task.entry=plain"]
    process = subprocess.Popen(
        [sys.executable, "-m", "runner", *words, f"--config-dir={folder}"],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    peaks = {"memory": 0.0, "threads": 0.0, "descriptors": 0.0}
    watcher = threading.Thread(target=watch, args=(process.pid, peaks))
    watcher.start()
    text = ""
    assert process.stderr is not None
    for line in process.stderr:
        text += line
        for mark, beginning in (("plan", "run "), ("start", "every rank started")):
            if line.startswith(beginning):
                marks.setdefault(mark, time.monotonic() - began)
    _, status, usage = os.wait4(process.pid, 0)
    ended = time.monotonic() - began
    watcher.join()
    if status or marks.keys() != {"plan", "start"}:
        sys.exit(f"{status}: {text[-4000:]}")
    return Launched(
        plan=marks["plan"],
        start=marks["start"] - marks["plan"],
        end=ended - marks["start"] - seconds,
        cpu=usage.ru_utime + usage.ru_stime,
        memory=peaks["memory"],
        threads=int(peaks["threads"]),
        descriptors=int(peaks["descriptors"]),
    )


def watch(pid: int, peaks: dict[str, float]) -> None:
    """Note the peaks of a process until it ends."""
    while True:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in lines)
            now = {
                "memory": int(fields["VmHWM"].split()[0]) / 1000,
                "threads": int(fields["Threads"]),
                "descriptors": len([*Path(f"/proc/{pid}/fd").iterdir()]),
            }
        except (OSError, KeyError):
            return
        for name, value in now.items():
            peaks[name] = max(peaks[name], value)
        time.sleep(0.05)


def record(folder: Path) -> Recording:
    """Launch on two real hosts, and return what the first one answered."""
    from tests.lab.lab import make_lab  # noqa: PLC0415 (`traced` needs none)

    with make_lab(2) as lab:
        lab.write_cluster(folder)
        words = ["cluster=lab", "task.command=true", "task.entry=plain", f"--config-dir={folder}"]
        done = subprocess.run(
            [sys.executable, "-c", "from benchmarks.many_hosts import traced; traced()", *words],
            cwd=folder,
            env=environment(FACTS=str(folder / FACTS_FILE)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        (run,) = (path for path in (folder / "runs").glob("[0-9]*") if path.is_dir())
        events = lab["node1"].sh(f"cat .runner/runs/{run.name}/node1/events.jsonl")
        lines = events.splitlines(keepends=True)
        first_end = next(i for i, line in enumerate(lines) if '"rank_exited"' in line)
        return Recording(
            names=["node1", lab["node1"].address, run.name],
            facts=(folder / FACTS_FILE).read_text(),
            began="".join(lines[:first_end]),
            ended="".join(lines[first_end:]),
        )


def traced() -> None:
    """Run the runner in this process, and write down the facts of the first node."""
    from runner.cli.main import main as run_main  # noqa: PLC0415
    from runner.control.rpc import session  # noqa: PLC0415

    original: Callable[[Frame], Frame] = vars(session)["checked_reply"]

    def noted(frame: Frame) -> Frame:
        if frame.kind == "facts" and frame.data["facts"]["node"] == "node1":
            Path(os.environ["FACTS"]).write_text(json.dumps(frame.data))
        return original(frame)

    vars(session)["checked_reply"] = noted
    sys.exit(run_main(sys.argv[1:]))


def start_far_end(
    folder: Path, recording: Recording, seconds: float
) -> tuple[subprocess.Popen[bytes], int]:
    """Start the process that plays the hosts; return it, and its port."""
    for name in ("host_key", "client_key"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(str(folder / name))
        key.write_public_key(str(folder / f"{name}.pub"))
    (folder / "client_key").chmod(0o600)
    (folder / "recording").write_text(json.dumps(asdict(recording)))
    places = [str(folder / name) for name in ("recording", "port", "host_key", "client_key.pub")]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.far_end", *places, str(seconds)], stdin=subprocess.PIPE
    )
    wait_until((folder / "port").exists, "the far end", 20)
    return process, int((folder / "port").read_text())


def write_cluster(folder: Path, port: int, count: int) -> None:
    """Write conf/cluster/many.yaml: so many hosts, each at an address of this machine's own."""
    hosts = {f"n{i + 1}": f"127.1.{i // 200}.{i % 200 + 1}" for i in range(count)}
    public_key = (folder / "host_key.pub").read_text().strip()
    known = "".join(f"[{address}]:{port} {public_key}\n" for address in hosts.values())
    (folder / "known_hosts").write_text(known)
    config = {
        "defaults": ["base"],
        "transport": "ssh",
        "project": "/",  # nothing is pushed
        "nodes": {name: {"host": address, "port": port} for name, address in hosts.items()},
        "ssh": {
            "user": "root",
            "key": str(folder / "client_key"),
            "known_hosts": str(folder / "known_hosts"),
            "config": os.devnull,
        },
    }
    (folder / "cluster").mkdir(exist_ok=True)
    (folder / "cluster" / "many.yaml").write_text(json.dumps(config))


if __name__ == "__main__":
    main()
