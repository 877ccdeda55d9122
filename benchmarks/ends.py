"""Duration of a run's end: one failed rank, with and without a controller, Ctrl-C, and `stop`.

    python -m benchmarks.ends [--hosts 2 4 8] [--rounds 5]

On lab hosts (root, Linux). From the moment a rank is killed, or the signal is sent, to the end of
the last rank on any host, as the kernel tells it (pidfd): median and worst seconds. Ranks end when
they are asked to.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import environment
from tests.lab.lab import Lab, make_lab

TIMEOUT_S = 60
RANK = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
SCENES = ("failure", "failure, no controller", "Ctrl-C", "stop")


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        make_lab(max(options.hosts), keep=[Path(folder)]) as lab,
    ):
        (Path(folder) / "rank.py").write_text(RANK)
        print(f"{'scene':24}  hosts  median s  worst s")
        for scene in SCENES:
            for count in options.hosts:
                bench = Bench(lab, Path(folder), list(lab.hosts)[:count])
                times = [bench.measure(scene) for _ in range(options.rounds)]
                median, worst = statistics.median(times), max(times)
                print(f"{scene:24}  {count:5}  {median:8.2f}  {worst:7.2f}", flush=True)


class Bench:
    """One number of hosts."""

    def __init__(self, lab: Lab, folder: Path, names: list[str]) -> None:
        self.lab, self.folder, self.names = lab, folder, names
        lab.write_cluster(folder / "conf", f"lab{len(names)}", names)
        self.argv = [sys.executable, "-m", "runner", f"cluster=lab{len(names)}"]
        self.env = environment()

    def measure(self, scene: str) -> float:
        """Start a run, end it that way; return the seconds until no rank is left."""
        controller = self.start()
        ranks = self.ranks()
        try:
            if scene == "failure, no controller":
                controller.kill()
                time.sleep(0.5)
            began = time.monotonic()
            if scene == "Ctrl-C":
                controller.send_signal(signal.SIGINT)
            elif scene == "stop":
                words = ["stop", "--run", "latest", *self.argv[3:]]
                subprocess.run(
                    [*self.argv[:3], *words],
                    cwd=self.folder,
                    env=self.env,
                    check=True,
                    timeout=TIMEOUT_S,
                    capture_output=True,
                )
            else:
                signal.pidfd_send_signal(ranks[-1], signal.SIGKILL)
            return until_gone(ranks) - began
        finally:
            controller.wait(TIMEOUT_S)
            for descriptor in ranks:
                os.close(descriptor)
            assert self.lab.wait_idle(TIMEOUT_S) == {}
            for host in self.lab.hosts.values():
                host.sh("rm -rf ~/.runner/runs")

    def start(self) -> subprocess.Popen[bytes]:
        """Start a run; return once every rank runs and every supervisor knows the others."""
        controller = subprocess.Popen(
            [*self.argv, "task.script=rank.py"],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + TIMEOUT_S
        while True:
            events = [self.events(name) for name in self.names]
            joined = sum('"hub_joined"' in text for text in events)
            if joined == len(events) - 1 and all('"rank_started"' in text for text in events):
                return controller
            assert time.monotonic() < end, "the run did not start"
            time.sleep(0.1)

    def events(self, name: str) -> str:
        """What a host has on record."""
        return self.lab[name].sh("cat ~/.runner/runs/*/*/events.jsonl", check=False)

    def ranks(self) -> list[int]:
        """A pidfd of every rank, in the order of the hosts."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                environ = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            node = next((w[12:].decode() for w in environ if w.startswith(b"RUNNER_NODE=")), "")
            if command[1:] == [b"-u", b"rank.py", b""] and node in self.names:
                found[node] = os.pidfd_open(int(entry.name))
        assert len(found) == len(self.names), found
        return [found[name] for name in self.names]


def until_gone(pidfds: list[int]) -> float:
    """Return the moment when the last of these processes ended."""
    left, end = set(pidfds), time.monotonic() + TIMEOUT_S
    waiting = select.poll()
    for descriptor in left:
        waiting.register(descriptor, select.POLLIN)
    while left:
        for descriptor, _ in waiting.poll(100):
            waiting.unregister(descriptor)
            left.discard(descriptor)
        assert time.monotonic() < end, "ranks are left"
    return time.monotonic()


if __name__ == "__main__":
    main()
