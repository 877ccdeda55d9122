"""Pushing code: a first push, one without a change, one of a changed file; against rsync and tar.

    python -m benchmarks.deploy [--hosts 4 8] [--rounds 3] [--gigabyte]

On lab hosts (root, Linux), turn by turn: `python -m runner deploy`, one `rsync -a --delete` per
host side by side, and one `tar | ssh tar` per host side by side, of the same 2,000 files of 20 MB
(half text, half random bytes). Prints medians in seconds and the median of the ratios to rsync,
for the whole command and, as "push", for what it adds to a launch that has its connections anyway.
With `--gigabyte`: one file of 1 GB, and the most memory the controller had, against 20 MB.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.timing import ratio, timed
from tests.lab.lab import Lab, make_lab

FILES, BYTES = 2000, 10_000
WAYS = ("runner", "rsync", "tar")
SCENES = ("first", "no change", "one file")


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gigabyte", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        make_lab(max(options.hosts), home_mb=3000, keep=[Path(folder)]) as lab,
    ):
        Path(folder).chmod(0o755)  # `cluster.project` is there
        if options.gigabyte:
            gigabyte(lab, Path(folder))
            return
        project = Path(folder) / "project"
        fill(project)
        print("hosts  scene      runner s  push s  rsync s  tar s  ratios to rsync: runner, push")
        for count in options.hosts:
            for line in rows(lab, project, count, options.rounds):
                print(line, flush=True)


def fill(project: Path) -> None:
    """Make a project of code and small data."""
    chance = random.Random(1)
    words = [f"word{number}" for number in range(500)]
    for number in range(FILES):
        path = project / f"part{number % 40}" / f"file{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % 2:
            path.write_bytes(chance.randbytes(BYTES))
        else:
            path.write_text(" ".join(chance.choices(words, k=BYTES))[:BYTES])
    subprocess.run(["git", "init", "-q", str(project)], check=True)


def rows(lab: Lab, project: Path, count: int, rounds: int) -> list[str]:
    """Measure one number of hosts, in all scenes."""
    names = list(lab.hosts)[:count]
    commands = {way: command(way, lab, project, names) for way in WAYS}
    changed = project / "part7" / "file7"
    seconds: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        for name in names:
            lab[name].sh("rm -rf ~/.runner")
            lab[name].sh("rm -rf ~/by_rsync ~/by_tar", user="root")
        for scene in SCENES:
            for way in WAYS[number % 3 :] + WAYS[: number % 3]:
                if scene == "one file":
                    changed.write_text(f"{number} {way} {time.time()}")
                took, out = timed(commands[way], project)
                seconds.setdefault((scene, way), []).append(took)
                if way == "runner":
                    seconds.setdefault((scene, "push"), []).append(json.loads(out)["seconds"])
    lines = []
    for scene in SCENES:
        ours, push, rsyncs, tars = (seconds[scene, way] for way in ("runner", "push", *WAYS[1:]))
        shown = "  ".join(
            f"{statistics.median(column):{width}.2f}"
            for column, width in ((ours, 8), (push, 6), (rsyncs, 7), (tars, 5))
        )
        lines.append(f"{count:5}  {scene:9}  {shown}  {ratio(ours, rsyncs)}, {ratio(push, rsyncs)}")
    lines.append(
        f"{count:5}  a launch with the release there: {launches(lab, project, names, rounds)}"
    )
    return lines


def launches(lab: Lab, project: Path, names: Sequence[str], rounds: int) -> str:
    """Return what a release that every host has adds to a launch, with the ranks' own copies."""
    words = [sys.executable, "-m", "runner", *cluster_words(lab, project.parent, names)]
    ways = {
        "pushed": [*words, "task.command=true"],
        "in place": [*words, "task.command=true", f"cluster.project={project.parent}"],
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    timed(ways["pushed"], project)
    for _ in range(rounds):
        for way, argv in ways.items():
            seconds[way].append(timed(argv, project)[0])
        shutil.rmtree(project / "runs")
    added = [one - other for one, other in zip(*seconds.values(), strict=True)]
    return ", ".join(
        [f"{way} {statistics.median(took):.2f} s" for way, took in seconds.items()]
        + [f"added {statistics.median(added):.2f} s ({min(added):.2f} to {max(added):.2f})"]
    )


def command(way: str, lab: Lab, project: Path, names: Sequence[str]) -> list[str]:
    """Return one way to push `project` to the hosts `names`."""
    if way == "runner":
        return [
            sys.executable,
            "-m",
            "runner",
            "deploy",
            "--json",
            *cluster_words(lab, project.parent, names),
        ]
    ssh = f"ssh -F /dev/null -i {lab.key} -o UserKnownHostsFile={lab.known_hosts}"
    scripts: dict[str, Callable[[str], str]] = {
        "rsync": lambda host: f"rsync -a --delete --exclude=.git -e '{ssh}' ./ {host}:by_rsync &",
        "tar": lambda host: (
            f"tar c --exclude=.git . | {ssh} {host} 'mkdir -p by_tar && tar x -C by_tar' &"
        ),
    }
    lines = [scripts[way](f"root@{lab[name].address}") for name in names]
    script = project.parent / f"{way}.sh"
    script.write_text("\n".join([*lines, "for job in $(jobs -p); do wait $job || exit 1; done\n"]))
    return ["bash", str(script)]


def cluster_words(lab: Lab, folder: Path, names: Sequence[str]) -> list[str]:
    """Write the cluster's YAML; return the words that choose it."""
    lab.write_cluster(folder, names=names)
    return ["cluster=lab", "--config-dir", str(folder)]


def gigabyte(lab: Lab, folder: Path) -> None:
    """Push a small and a big file to all hosts; print the most memory a controller had."""
    for size in (20, 1000):
        project = folder / f"of_{size}"
        project.mkdir()
        with (project / "data").open("wb") as file:
            for _ in range(size):
                file.write(random.randbytes(1_000_000))
        argv = [
            *(sys.executable, "-m", "runner", "deploy", "deploy.max_mb=2000"),
            *cluster_words(lab, folder, list(lab.hosts)),
        ]
        took, _ = timed(argv, project)
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
        print(f"{len(lab.hosts)} hosts, {size:5} MB: {took:6.1f} s, at most {most} MiB of memory")
        shutil.rmtree(project)


if __name__ == "__main__":
    main()
