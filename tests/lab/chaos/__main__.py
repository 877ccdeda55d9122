"""Command line of the chaos test: many random events on real hosts, and a report.

    python -m tests.lab.chaos --events 1000 --seed 7

Root, Linux. An event is decided by the seed and its number: `--seed S --from N --events 1` does
that one again. Exit code 1 if anything did not hold; the evidence is in a folder that is named.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.lab.chaos import report
from tests.lab.chaos.disasters import KINDS
from tests.lab.chaos.runs import USER
from tests.lab.chaos.session import Outcome, Session, run_events
from tests.lab.lab import FreezableDisk, make_lab, missing
from tests.lab.launching import Launcher

HOSTS = 3


def main() -> int:
    """Run the events, side by side on several labs; print and write what came of them."""
    options = _options()
    if reason := missing():
        print(reason, file=sys.stderr)
        return 2
    if options.part is not None:
        return run_part(options)
    folder = Path(options.evidence or tempfile.mkdtemp(prefix="chaos-", dir="/var/tmp"))
    folder.mkdir(parents=True, exist_ok=True)
    began = time.time()
    print(f"seed {options.seed}; evidence in {folder}", flush=True)
    argv = [sys.executable, "-m", "tests.lab.chaos", *sys.argv[1:], f"--evidence={folder}"]
    parts = [
        subprocess.Popen([*argv, f"--seed={options.seed}", f"--part={number}"])
        for number in range(options.jobs)
    ]

    def end_early(*_: object) -> None:
        for process in parts:
            process.terminate()

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, end_early)
    for process in parts:
        process.wait()
    outcomes = [
        Outcome(**json.loads(line))
        for number in range(options.jobs)
        for line in _lines(folder / f"part_{number}.jsonl")
    ]
    session_report = report.SessionReport(outcomes, options.seed, time.time() - began, folder)
    print(report.summary(session_report))
    failed = any(process.problems for process in outcomes) or len(outcomes) < options.events
    return 1 if failed or any(process.returncode for process in parts) else 0


def run_part(options: argparse.Namespace) -> int:
    """Run one lab's share of the events."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would have the controllers ignore it
    kinds = [event_kind for event_kind in KINDS if options.only in event_kind.name]
    evidence = Path(options.evidence)
    numbers = range(options.first + options.part, options.first + options.events, options.jobs)
    with (
        tempfile.TemporaryDirectory(prefix="chaos-", dir="/var/tmp") as top,
        make_lab(HOSTS, disk=FreezableDisk) as lab,
        (evidence / f"part_{options.part}.jsonl").open("w") as record,
    ):
        project = Path(top) / "project"
        project.mkdir()
        launcher = Launcher(project)
        lab.write_cluster(launcher.conf, ssh={"user": USER})
        session = Session(lab, launcher, options.seed, evidence, options.part)

        def on_outcome(outcome: Outcome) -> None:
            print(outcome.line(), *outcome.problems, sep="\n      ", flush=True)
            print(json.dumps(outcome.as_data()), file=record, flush=True)

        run_events(session, numbers, on_outcome, kinds if options.only or options.each else [])
        if last := session.close():
            on_outcome(last)
        launcher.close()
    return 1 if last else 0


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--from", type=int, default=0, dest="first", help="number of the first one")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--jobs", type=int, default=3, help="labs side by side")
    parser.add_argument("--only", default="", help="kinds with this in their name")
    parser.add_argument("--each", action="store_true", help="one kind after the other")
    parser.add_argument("--evidence", default="", help="keep what explains violations there")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
