"""Runs of a supervisor on this machine, without SSH and without torch.

They run under Python 3.8 where one is found, since that is the oldest they promise.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from runner.core.codec import encode
from runner.core.model.order import Order
from runner.core.protocol.events import Ended, Event, RankStarted, parse
from runner.core.protocol.paths import RunFolder
from runner.host.process.kill import kill_all
from runner.host.process.orphans import Family

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]
OLD = [*Path.home().glob(".pyenv/versions/3.8.*/bin/python"), Path("/usr/bin/python3.8")]
PYTHON = next((str(path) for path in OLD if path.exists()), sys.executable)

SPAWN = """
import json, os, socket, sys, time
sys.path.insert(0, sys.argv[1])
from runner.core.codec import decode
from runner.core.protocol.paths import RunFolder
from runner.core.model.order import Order
from runner.host.facts import ports
from runner.host.storage import run_folder
from runner.host.supervisor import guardian
from runner.host.storage.run_lock import Doorway
from runner.host.agent.follow import Followed
from runner.host.supervisor.supervisor import Start
order = decode(Order, json.loads(sys.argv[3]))
folder = RunFolder(sys.argv[2], order.run_id, order.node)
try:
    ranks = f"{sys.argv[1]}/runner/host/ranks"
    programs = {n: open(f"{ranks}/{n}.py").read() for n in ("shim", "sitecustomize")}
    run_folder.prepare(folder, order, programs, {})
except FileExistsError:
    pass  # what a link refuses is not what is tested
lock = Doorway(order.run_id, order.node).lock_for_life()
held = ports.NOTHING_HELD
if order.hub:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((order.hub.addr, order.hub.port))
    held = ports.Held(None, listener)
early = Followed(folder, order)
if sys.argv[4:]:  # somebody stops it before it listens
    early.tell("stop", reason="told early", cause="user")
pipe = guardian.spawn(Start(folder, order, dict(os.environ), held, b"token"), lock)
if lock is not None:
    os.close(lock)
said = b""
while True:
    chunk = os.read(pipe, 4096)
    if not chunk:
        break
    said += chunk
while sys.argv[4:] and not early.over:
    early.look()
    time.sleep(0.02)
print(said.decode())
"""

CLOSE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from runner.core.codec import decode
from runner.core.protocol.paths import RunFolder
from runner.core.model.order import Order
from runner.host.process.kill import kill_all
from runner.host.process.orphans import Family
from runner.host.supervisor import guardian
order = decode(Order, json.loads(sys.argv[3]))
guardian.close_after_both(RunFolder(sys.argv[2], order.run_id, order.node), order)
"""

DOOR = """
import sys
sys.path.insert(0, sys.argv[1])
from runner.host.storage.run_lock import Doorway
door = Doorway(sys.argv[2], sys.argv[3]).connect()
door.send(sys.argv[4].encode())
"""


class Running:
    """One supervised run on this machine."""

    def __init__(self, folder: RunFolder, order: Order) -> None:
        self.folder, self.order = folder, order

    def events(self) -> list[Event]:
        """What is on record."""
        with contextlib.suppress(FileNotFoundError):
            return [parse(line) for line in Path(self.folder.events).read_text().splitlines()]
        return []

    def bodies(self, kind: type[Any]) -> list[Any]:
        """The bodies of one kind."""
        return [event.body for event in self.events() if isinstance(event.body, kind)]

    def until(self, condition: Callable[[], object], seconds: float = 20) -> None:
        """Wait for a condition, with a deadline."""
        end = time.monotonic() + seconds
        while not condition():
            log = Path(self.folder.log)
            assert time.monotonic() < end, (self.events(), log.exists() and log.read_text())
            time.sleep(0.02)

    def started(self) -> None:
        """Wait until every rank runs."""
        self.until(lambda: len(self.bodies(RankStarted)) == len(self.order.ranks))

    def ended(self, seconds: float = 20) -> Ended:
        """Wait for the end."""
        self.until(lambda: self.bodies(Ended), seconds)
        (body,) = self.bodies(Ended)
        assert isinstance(body, Ended)
        return body

    def as_link(self, code: str, inside: Sequence[str] = (), *more: str) -> str:
        """Run code as a link would, with the source tree, the work folder and the order."""
        words = [str(ROOT), self.order.workdir, json.dumps(encode(self.order)), *more]
        argv = [*inside, PYTHON, "-c", code, *words]
        said = subprocess.run(argv, timeout=40, capture_output=True, text=True, check=False)
        assert said.returncode == 0, (said.stdout, said.stderr)
        return said.stdout

    def say(self, word: str) -> None:
        """Speak to the supervisor as a link does."""
        line = json.dumps({"say": word, "cause": "user", "reason": "told to stop"}) + "\n"
        argv = [PYTHON, "-c", DOOR, str(ROOT), self.order.run_id, self.order.node, line]
        subprocess.run(argv, check=True, timeout=20)

    def state(self) -> dict[str, Any]:
        """The state file."""
        data: dict[str, Any] = json.loads(Path(self.folder.state).read_text())
        return data

    def supervisor(self) -> int:
        """The supervisor's pid."""
        return int(self.state()["pid"])

    def processes(self) -> list[int]:
        """Everything of the run that is alive, by its mark."""
        mark = f"RUNNER_RUN_ID={self.order.run_id}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                pid = int(entry.name)
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX" and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(pid)
        return found


class Starter:
    """Starts runs below a folder, and makes sure that none outlives its test."""

    def __init__(self, workdir: Path) -> None:
        self._workdir = workdir
        self._runs: list[Running] = []

    def __call__(
        self,
        *words: str,
        ranks: int = 2,
        grace_s: float = 1.0,
        inside: Sequence[str] = (),
        stopped: bool = False,
        **changes: Any,
    ) -> Running:
        """Start ranks that do what `words` say; `inside` is a command to start it all by.

        What is `stopped` was told to stop before it could hear it.
        """
        run_id = f"t-{os.getpid()}-{time.monotonic_ns():x}"
        folder = RunFolder(str(self._workdir), run_id, "here")
        order = Order(
            run_id=run_id,
            node="here",
            attempt=0,
            workdir=str(self._workdir),
            argv=(
                sys.executable,
                *(str(PROGRAMS / "minirun.py"), str(ranks), str(PROGRAMS / "rank.py")),
                *words,
            ),
            env={"RUNNER_RUN_ID": run_id, "RUNNER_NODE": "here", "PYTHON_EXEC": folder.shim},
            cwd=folder.work,
            ranks=tuple(range(ranks)),
            shim=folder.shim,
            shim_python=PYTHON,
            rank_prefix=(sys.executable,),
            hide=("PYTHON_EXEC",),
            grace_s=grace_s,
        )
        order = Order(**{**vars(order), **changes})
        run = Running(folder, order)
        self._runs.append(run)
        said = run.as_link(SPAWN, inside, *(["stopped"] if stopped else []))
        assert said == "ready\n", said
        return run

    def close(self) -> None:
        """Kill what is left of them."""
        for run in self._runs:
            marks = {f"RUNNER_RUN_ID={run.order.run_id}"}
            if run.processes():  # some fork faster than one can look: they are held first
                family = Family(marks, set())
                family.hold()
                kill_all(family.look, list)
            assert run.processes() == []
