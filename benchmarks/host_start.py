"""Our own code on one quiet host: from the log-in to the exec of the program, phase by phase.

    python -m benchmarks.host_start [--times 15] [--python python3.8]

On one lab host (root, Linux), launches of `true` without torchrun, one after the other. Prints the
median, least and greatest of each phase in milliseconds, in the order in which they follow:

    start      from the command to the first connection, on the controller
    log-in     until ssh has a channel
    hello      until the agent answers: Python, our code
    facts      until the host has reported its facts
    plan       until the host gets its order, on the controller
    exec       until its supervisor has started the program, by the host's clock
    host       hello, facts and exec together: our code on the host
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import environment

TIMEOUT_S = 60
PHASES = ("start", "log-in", "hello", "facts", "plan", "exec")


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--python", default="/usr/bin/python3", help="the host's interpreter")
    options = parser.parse_args()
    from tests.lab.lab import make_lab  # noqa: PLC0415 (`traced` is timed without)

    with tempfile.TemporaryDirectory(prefix="bench-") as name, make_lab(1) as lab:
        folder = Path(name)
        lab.write_cluster(folder / "conf")
        launch(folder, options.python)
        found = [launch(folder, options.python) for _ in range(options.times)]
    print("phase    ms (least to greatest)")
    for phase in (*PHASES, "host"):
        row = sorted(1000 * each[phase] for each in found)
        print(f"{phase:7} {statistics.median(row):4.0f} ({row[0]:.0f} to {row[-1]:.0f})")


def launch(folder: Path, python: str) -> dict[str, float]:
    """Launch once; return the seconds of each phase."""
    began = time.time()
    words = ["cluster=lab", "task.command=true", "task.entry=plain"]
    words.append(f"cluster.host_python={python}")
    done = subprocess.run(
        [sys.executable, "-c", "from benchmarks.host_start import traced; traced()", *words],
        cwd=folder,
        env=environment(TRACE=str(folder / "trace")),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    times = json.loads((folder / "trace").read_text())
    (run,) = sorted((folder / "runs").glob("[0-9]*"), key=os.path.getmtime)[-1:]
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    (started,) = [event["wall"] for event in events if event["kind"] == "program_started"]
    marks = [began, *(times[name] for name in ("connect", "channel", "hello", "facts"))]
    marks += [times["request start"], started]
    pairs = zip(PHASES, itertools.pairwise(marks), strict=True)
    found = {phase: after - before for phase, (before, after) in pairs}
    return {**found, "host": found["hello"] + found["facts"] + found["exec"]}


def traced() -> None:
    """Run the runner in this process, and note when a session comes to each phase."""
    from runner.cli.main import main as run_main  # noqa: PLC0415 (timed as a launch's own)
    from runner.control.rpc import session  # noqa: PLC0415

    times: dict[str, float] = {}

    def note(holder: Any, name: str, mark: Callable[..., str]) -> None:
        original = getattr(holder, name)

        def noted(*args: Any, **fields: Any) -> object:
            times.setdefault(mark(*args), time.time())
            return original(*args, **fields)

        setattr(holder, name, noted)

    note(session.Connector, "open", lambda *_: "connect")
    note(session.HostSession, "__init__", lambda *_: "channel")
    note(session.HostSession, "request", lambda _, kind, *__: f"request {kind}")
    note(session, "checked_reply", lambda frame: frame.kind)
    code = run_main(sys.argv[1:])
    Path(os.environ["TRACE"]).write_text(json.dumps(times))
    sys.exit(code)


if __name__ == "__main__":
    main()
