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
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tests.lab.chaos.kinds import KINDS
from tests.lab.chaos.runs import USER
from tests.lab.chaos.session import Outcome, Session
from tests.lab.lab import FreezableDisk, make_lab, missing
from tests.lab.launching import Launcher

HOSTS = 3


def main() -> int:
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
        for path in folder.glob("part_*.jsonl")
        for line in path.read_text().splitlines()
    ]
    for kind, count in sorted(Counter(each.kind for each in outcomes).items()):
        print(f"{count:5} {kind}")
    minutes = (time.time() - began) / 60
    took = f"{len(outcomes)} events in {minutes:.1f} min ({len(outcomes) / minutes:.0f} per minute)"
    orphans = sum(each.orphans for each in outcomes)
    violations = [f"{each.number:05}" for each in outcomes if each.problems]
    found = f"{orphans} orphans, {len(violations)} violations"
    print(f"\n{took}, seed {options.seed}: {found}")
    if violations:
        print(f"evidence in {folder}: {', '.join(violations)}")
    failed = violations or len(outcomes) < options.events
    return 1 if failed or any(process.returncode for process in parts) else 0


def run_part(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would have the controllers ignore it
    kinds = [event_kind for event_kind in KINDS if options.only in event_kind.name]
    evidence = Path(options.evidence)
    numbers = range(options.first + options.part, options.first + options.events, options.jobs)
    with (
        (evidence / f"part_{options.part}.jsonl").open("w") as record,
        tempfile.TemporaryDirectory(prefix="chaos-", dir="/var/tmp") as top,
        make_lab(HOSTS, disk=FreezableDisk) as lab,
    ):
        project = Path(top) / "project"
        project.mkdir()
        launcher = Launcher(project)
        lab.write_cluster(launcher.conf, ssh={"user": USER})
        session = Session(lab, launcher, options.seed, evidence, str(options.part))

        def on_outcome(outcome: Outcome) -> None:
            print(outcome.line(), *outcome.problems, sep="\n      ", flush=True)
            print(json.dumps(asdict(outcome)), file=record, flush=True)

        ended: list[int] = []
        for signum in (signal.SIGINT, signal.SIGTERM):  # end early, and in order
            signal.signal(signum, lambda *_: ended.append(1))
        for number in numbers:
            if not ended:
                kind = kinds[number % len(kinds)] if options.only else None
                on_outcome(session.event(number, kind))
        if last := session.close():
            on_outcome(last)
        launcher.close()
    return 1 if last else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--from", type=int, default=0, dest="first", help="number of the first one")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--jobs", type=int, default=3, help="labs side by side")
    parser.add_argument("--only", default="", help="kinds with this in their name")
    parser.add_argument("--evidence", default="", help="keep what explains violations there")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
