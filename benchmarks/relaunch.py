"""Standstill of a run when a host loses its power and a spare takes its place.

    python -m benchmarks.relaunch [--rounds 3] [--limits 15/5 3/0.5]

On four lab hosts (root, Linux), three of which are used. From the power cut to the next step that
every rank has finished; `--limits` are pairs of `lost_s` and `relaunch.backoff_s` in seconds.
Ranks are plain Python: they import no torch, torchrun does.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import environment
from tests.lab.lab import Lab, make_lab
from tests.lab.waiting import wait_until

TIMEOUT_S = 180
RANKS = 3
RANK = """\
import os, sys, time
attempt = os.environ.get("RUNNER_ATTEMPT", "0")
while not os.path.exists(sys.argv[1] + "/over"):
    time.sleep(0.1)
    with open(f"{sys.argv[1]}/{os.environ['RANK']}.{attempt}", "a") as file:
        file.write(f"{time.monotonic()}\\n")
"""
SCENES = {"a host": "node2", "the master": "node1"}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limits", nargs="+", default=["15/5", "3/0.5"])
    options = parser.parse_args()
    print("loses power  lost_s  backoff_s  median s  worst s  median/lost_s")
    for limits in options.limits:
        lost_s, backoff_s = map(float, limits.split("/"))
        for scene, node in SCENES.items():
            times = [measure(node, lost_s, backoff_s) for _ in range(options.rounds)]
            median, worst = statistics.median(times), max(times)
            row = f"{scene:11}  {lost_s:6g}  {backoff_s:9g}  {median:8.1f}  {worst:7.1f}"
            print(f"{row}  {median / lost_s:13.2f}", flush=True)


def measure(node: str, lost_s: float, backoff_s: float) -> float:
    """Cut a host's power while a run is on; return the seconds until all ranks have gone on."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        folder = Path(place)
        with make_lab(4, keep=[folder]) as lab:
            controller = start(lab, folder, lost_s, backoff_s)
            try:
                await_steps(folder, 0)
                await_joined(folder)
                began = time.monotonic()
                lab[node].power_off()
                took = await_steps(folder, 1) - began
            finally:
                (folder / "over").touch()
                code = controller.wait(TIMEOUT_S)
            assert code == 0, f"exit {code}"
            return took


def start(lab: Lab, folder: Path, lost_s: float, backoff_s: float) -> subprocess.Popen[bytes]:
    """Start a run on three of four hosts."""
    lab.write_cluster(folder / "conf")
    (folder / "rank.py").write_text(RANK)
    return subprocess.Popen(
        [
            *(
                sys.executable,
                "-m",
                "runner",
                "cluster=lab",
                f"task.nnodes={RANKS}",
                "relaunch.max=1",
            ),
            *(f"lost_s={lost_s}", f"relaunch.backoff_s={backoff_s}"),
            *("task.script=rank.py", f"task.args_after=[{folder}]"),
        ],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def await_joined(folder: Path) -> None:
    """Return once every supervisor knows the hub."""
    events = next(folder.glob("runs/*/events.jsonl"))
    wait_until(
        lambda: events.read_text().count('"kind":"hub_joined"') == RANKS - 1,
        "every supervisor to know the hub",
        TIMEOUT_S,
    )


def await_steps(folder: Path, attempt: int) -> float:
    """Return when every rank had finished its first step in an attempt."""
    files = [folder / f"{rank}.{attempt}" for rank in range(RANKS)]
    end = time.monotonic() + TIMEOUT_S
    while True:
        assert time.monotonic() < end, f"attempt {attempt} made no step"
        texts = [file.read_text() for file in files if file.exists()]
        if len(texts) == len(files) and all("\n" in text for text in texts):
            return max(float(text.split()[0]) for text in texts)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
