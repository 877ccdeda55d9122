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

from runner.core.wire.codec import encode
from runner.core.wire.events import Ended, Event, RankStarted, parse
from runner.core.wire.order import Order, Program
from runner.core.wire.paths import RunPaths
from runner.host.process.subreaper import kill_until_gone
from runner.host.storage.run_owner import RunSocket
from runner.host.supervisor.recovery import RunProcesses
from tests.lab.waiting import PATIENCE, wait_until

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]
OLD_PYTHONS = [*Path.home().glob(".pyenv/versions/3.8.*/bin/python"), Path("/usr/bin/python3.8")]
HOST_PYTHON = next((str(path) for path in OLD_PYTHONS if path.exists()), sys.executable)

SPAWN_CODE = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from runner.core.wire.codec import decode
from runner.core.wire.paths import PROGRAM_LOG, RunPaths
from runner.core.wire.order import Order, Program
from runner.host.facts import ports
from runner.host.storage import run_folder
from runner.host.supervisor import guardian
from runner.host.storage.run_owner import RunSocket
from runner.host.agent.follow import FollowedRun
from runner.host.supervisor.attempt import SupervisorArgs
order = decode(Order, json.loads(sys.argv[3]))
folder = RunPaths(sys.argv[2], order.run_id, order.node)
ranks = f"{sys.argv[1]}/runner/host/ranks"
programs = {n: open(f"{ranks}/{n}.py").read() for n in ("shim", "rank_facts", "sitecustomize")}
run_folder.create_run_folder(folder, order, programs, {})
run_socket = RunSocket(folder).take()
early = FollowedRun(RunSocket(folder), order)
if "stuck" in sys.argv[4:]:
    os.makedirs(folder.attempt_folder(0), exist_ok=True)
    os.mkfifo(folder.stream_log(0, PROGRAM_LOG, "out"))
if "stopped" in sys.argv[4:]:  # before it listens
    early.send("stop", reason={"kind": "user", "detail": "told early"})
args = SupervisorArgs(folder, order, dict(os.environ), ports.NO_PORTS, b"token")
pipe = guardian.spawn(args, run_socket, guardian.open_log(folder))
run_socket.close()
said = os.read(pipe, 4096)
if "stopped" in sys.argv[4:]:
    early.watch()
print(said.decode())
"""

RECOVER_CODE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from runner.core.wire.codec import decode
from runner.core.wire.paths import RunPaths
from runner.core.wire.order import Order, Program
from runner.host.supervisor import recovery
order = decode(Order, json.loads(sys.argv[3]))
recovery.recover_orphaned(RunPaths(sys.argv[2], order.run_id, order.node), order)
"""


class SupervisedRun:
    def __init__(self, folder: RunPaths, order: Order) -> None:
        self.folder, self.order = folder, order

    def events(self) -> list[Event]:
        with contextlib.suppress(FileNotFoundError):
            return [parse(line) for line in Path(self.folder.events).read_text().splitlines()]
        return []

    def bodies(self, kind: type[Any]) -> list[Any]:
        return [event.body for event in self.events() if isinstance(event.body, kind)]

    def until(self, condition: Callable[[], object], seconds: float = 20) -> None:
        log = Path(self.folder.supervisor_log)
        wait_until(
            condition,
            "the run",
            seconds,
            detail=lambda: (self.events(), log.exists() and log.read_text()),
        )

    def wait_started(self) -> None:
        self.until(lambda: len(self.bodies(RankStarted)) == len(self.order.ranks))

    def wait_ended(self, seconds: float = 20) -> Ended:
        self.until(lambda: self.bodies(Ended), seconds)
        (body,) = self.bodies(Ended)
        assert isinstance(body, Ended)
        return body

    def run_as_agent(self, code: str, wrapper: Sequence[str] = (), *extra_args: str) -> str:
        """Run code as a link would, with the source tree, the work folder and the order."""
        args = [str(ROOT), self.order.workdir, json.dumps(encode(self.order)), *extra_args]
        argv = [*wrapper, HOST_PYTHON, "-c", code, *args]
        result = subprocess.run(
            argv, timeout=40 * PATIENCE, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, (result.stdout, result.stderr)
        return result.stdout

    def send_command(self, command: str) -> None:
        line = (
            json.dumps({"command": command, "reason": {"kind": "user", "detail": "told to stop"}})
            + "\n"
        )
        connection = RunSocket(self.folder).connect()  # at once: some runs end soon by themselves
        assert connection is not None
        with connection:
            connection.send(line.encode())

    def supervisor(self) -> int:
        owner = json.loads(Path(self.folder.owner_file).read_text())
        _guardian, supervisor = owner["start_ticks"]
        return int(supervisor)

    def processes(self) -> list[int]:
        """Everything of the run that is alive, by its mark."""
        env_tag = f"RUNNER_RUN_ID={self.order.run_id}".encode()
        pids = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                pid = int(entry.name)
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX" and env_tag in (entry / "environ").read_bytes().split(b"\0"):
                    pids.append(pid)
        return pids


TORCHRUN = str(PROGRAMS / "torchless" / "torch" / "distributed" / "run.py")


class RunStarter:
    """Starts runs below a folder, and makes sure that none outlives its test."""

    def __init__(self, workdir: Path) -> None:
        self._workdir = workdir
        self._runs: list[SupervisedRun] = []

    def __call__(
        self,
        *steps: str,
        ranks: int = 2,
        grace_s: float = 1.0,
        program: Sequence[str] = (sys.executable, "-u", str(PROGRAMS / "rank.py")),
        launcher: Sequence[str] = (sys.executable, TORCHRUN),
        wrapper: Sequence[str] = (),
        start_as: str = "",
        **changes: Any,
    ) -> SupervisedRun:
        """Start ranks that do what `steps` say to `program`; `wrapper` starts it all.

        What starts as "stopped" was told to stop before it could hear it; as "stuck", its program
        waits for somebody to read its log, which is a pipe.
        """
        run_id = f"t-{os.getpid()}-{time.monotonic_ns():x}"
        folder = RunPaths(str(self._workdir), run_id, "here")
        order = Order(
            run_id=run_id,
            node="here",
            attempt=0,
            workdir=str(self._workdir),
            program=Program(
                entry="torchrun",
                launcher=tuple(launcher),
                words=(*program, *steps),
                env={"RUNNER_RUN_ID": run_id, "RUNNER_NODE": "here", "HIDDEN": "from ranks"},
                hidden=("HIDDEN",),
                host_python=HOST_PYTHON,
            ),
            cwd=folder.work,
            nproc=ranks,
            grace_s=grace_s,
        )
        order = Order(**{**vars(order), **changes})
        run = SupervisedRun(folder, order)
        self._runs.append(run)
        output = run.run_as_agent(SPAWN_CODE, wrapper, start_as)
        assert output == "ready\n", output
        return run

    def close(self) -> None:
        for run in self._runs:
            env_tags = {f"RUNNER_RUN_ID={run.order.run_id}"}
            if run.processes():  # some fork faster than one can look: they are held first
                run_processes = RunProcesses(env_tags)
                run_processes.freeze()
                kill_until_gone(run_processes.scan)
            assert run.processes() == []
