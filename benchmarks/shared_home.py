"""File operations on a home that all hosts share, as on NFS: those of a deploy and of a launch.

    python -m benchmarks.shared_home [--hosts 4] [--files 1000]

On lab hosts (root, Linux, strace): counts, per host, the system calls of our processes there that
name a path below the workdir, or change one that is open. On NFS nearly each is a round trip to the
same server. Prints the sum over all hosts, the most and the median of one.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.timing import timed
from tests.lab.lab import Lab, make_lab

CALLS = "%file,fchmod,fsync"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--files", type=int, default=1000)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        make_lab(options.hosts, shared_home=True, home_mb=1000, keep=[Path(folder)]) as lab,
    ):
        Path(folder).chmod(0o755)  # the hosts' user reads it
        project = Path(folder) / "project"
        project.mkdir()
        for number in range(options.files):
            (project / f"file{number}.py").write_text(f"x = {number}\n")
        subprocess.run(["git", "init", "-q", str(project)], check=True)
        traced = traced_python(Path(folder))
        lab.write_cluster(Path(folder), host_python=str(traced), python=sys.executable)
        where = ["cluster=lab", "--config-dir", folder]
        runner = [sys.executable, "-m", "runner"]
        print(f"{options.hosts} hosts, {options.files} files   all hosts   most   median")
        show("first deploy", [*runner, "deploy", *where], project, lab, Path(folder))
        show("deploy, no change", [*runner, "deploy", *where], project, lab, Path(folder))
        (project / "file7.py").write_text("x = 'changed'\n")
        show("deploy, one file", [*runner, "deploy", *where], project, lab, Path(folder))
        launch = [*runner, *where, "task.command=true", "task.entry=plain"]
        show("launch", launch, project, lab, Path(folder))


def traced_python(folder: Path) -> Path:
    """Make a Python that notes its system calls, in a file for each host and process."""
    (folder / "traces").mkdir()
    (folder / "traces").chmod(0o777)
    script = folder / "traced-python"
    traces = f"{folder}/traces/$(hostname).$$"
    options = f"-f -qq -y -s 0 -e trace={CALLS} -e signal=none -o {traces}"
    script.write_text(
        f"#!/bin/sh\ngrep -q 'TracerPid:\t0' /proc/$$/status || exec {sys.executable} \"$@\"\n"
        f'exec strace {options} {sys.executable} "$@"\n'
    )
    script.chmod(0o755)
    return script


def show(scene: str, argv: list[str], project: Path, lab: Lab, folder: Path) -> None:
    """Run a command, and print what it cost."""
    timed(argv, project)
    lab.wait_idle(10)
    counts = dict.fromkeys(lab.hosts, 0)
    for trace in (folder / "traces").iterdir():
        calls = re.findall(r"^\d+ +\w+\(.*/\.runner/.*", trace.read_text(), re.MULTILINE)
        # What is known of an open file is no round trip.
        counts[trace.name.partition(".")[0]] += sum("AT_EMPTY_PATH" not in call for call in calls)
        trace.unlink()
    most, median = max(counts.values()), statistics.median(counts.values())
    print(f"{scene:22} {sum(counts.values()):10} {most:6} {median:8.0f}", flush=True)


if __name__ == "__main__":
    main()
