"""Code kept beside the record: what it adds to launches of a project of 5,000 files.

    python -m benchmarks.code_store [--rounds 3]

On one lab host (root, Linux): a first launch, one without a change, and one after an edit of one
file. Prints medians: seconds until the rank's first line and until the launch has ended, then what
keeping the code alone takes, in seconds and in CPU seconds of the controller. The rank prints a
line and ends, so that the end of the launch waits for the copy.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from runner.control.code.pool import CodePool
from runner.control.code.snapshot import Snapshot
from runner.core.spec import Deploy
from tests.golden.builders import spec
from tests.lab.lab import make_lab
from tests.lab.launching import PLAIN_ENTRY

FILES, LARGEST = 5000, 20_000
SCENES = ("first", "no change", "one edit")


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        make_lab(1, home_mb=3000, keep=[Path(folder)]) as lab,
    ):
        times: dict[str, list[tuple[float, ...]]] = {scene: [] for scene in SCENES}
        for number in range(options.rounds):
            project = Path(folder) / f"project{number}"
            fill(project, seed=number)
            lab.write_cluster(project / "conf")
            for scene in SCENES:
                if scene == "one edit":
                    (project / "d1" / "f1.py").write_text("edited\n")
                times[scene].append((*launch(project), *keep(project)))
        print("scene      first line s  end s  kept s  CPU s")
        for scene, rows in times.items():
            first, end, kept, cpu = map(statistics.median, zip(*rows, strict=True))
            print(f"{scene:9}  {first:12.2f}  {end:5.2f}  {kept:6.2f}  {cpu:5.2f}")


def fill(project: Path, seed: int) -> None:
    """Make a project of 50 MB in 50 folders, and a program."""
    chance = random.Random(seed)
    for number in range(FILES):
        file = project / f"d{number % 50}" / f"f{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(chance.randbytes(chance.randrange(LARGEST)))
    (project / "train.py").write_text("print('here', flush=True)\n")


def launch(project: Path) -> tuple[float, float]:
    """Launch the program; return the seconds to its first line, and to the end of the launch."""
    words = ("cluster=lab", PLAIN_ENTRY, "task.script=train.py", "ui=plain")
    argv = [sys.executable, "-m", "runner", *words]
    began = time.monotonic()
    process = subprocess.Popen(
        argv, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout
    assert "here" in process.stdout.readline()
    first_line_s = time.monotonic() - began
    process.stdout.read()
    assert process.wait() == 0
    return first_line_s, time.monotonic() - began


def keep(project: Path) -> tuple[float, float]:
    """Keep the code in another store, as the launches did; return seconds, and CPU seconds."""
    store = CodePool(project / "runs" / "alone")
    release = Snapshot(spec(deploy=Deploy(enabled=True, max_mb=500)), project).release()
    began, cpu = time.monotonic(), time.process_time()
    store.add(release)
    return time.monotonic() - began, time.process_time() - cpu


if __name__ == "__main__":
    main()
