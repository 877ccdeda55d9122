"""The supervisor, its guardian and the rank shim on this machine, without SSH and without torch.

They run under Python 3.8 where one is found, since that is the oldest they promise.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.core.codec import encode
from runner.core.events import (
    Ended,
    Event,
    ProgramExited,
    ProgramStarted,
    RankExited,
    RankStarted,
    parse,
)
from runner.core.layout import RunFolder
from runner.core.order import Order
from runner.core.states import State

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]
OLD = [*Path.home().glob(".pyenv/versions/3.8.*/bin/python"), Path("/usr/bin/python3.8")]
PYTHON = next((str(path) for path in OLD if path.exists()), sys.executable)

SPAWN = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from runner.core.codec import decode
from runner.core.layout import RunFolder
from runner.core.order import Order
from runner.host import guardian, records
order = decode(Order, json.loads(sys.argv[3]))
folder = RunFolder(sys.argv[2], order.run_id, order.node)
try:
    records.prepare(folder, order, open(sys.argv[1] + "/runner/host/rank.py").read())
except FileExistsError:
    pass  # what a link refuses is not what is tested
pipe = guardian.spawn(folder, order, dict(os.environ), None)
said = b""
while True:
    chunk = os.read(pipe, 4096)
    if not chunk:
        break
    said += chunk
print(said.decode())
"""

DOOR = """
import sys
sys.path.insert(0, sys.argv[1])
from runner.host.doorway import Doorway
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

    def say(self, word: str) -> None:
        """Speak to the supervisor as a link does."""
        argv = [PYTHON, "-c", DOOR, str(ROOT), self.order.run_id, self.order.node, word]
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


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start runs; make sure that none outlives its test."""
    runs: list[Running] = []

    def begin(*words: str, ranks: int = 2, grace_s: float = 1.0, **changes: Any) -> Running:
        run_id = f"t-{os.getpid()}-{time.monotonic_ns():x}"
        folder = RunFolder(str(tmp_path), run_id, "here")
        order = Order(
            run_id=run_id,
            node="here",
            attempt=0,
            workdir=str(tmp_path),
            argv=(
                sys.executable,
                *(str(PROGRAMS / "minirun.py"), str(ranks), str(PROGRAMS / "rank.py")),
                *words,
            ),
            env={"RUNNER_RUN_ID": run_id, "PYTHON_EXEC": folder.shim},
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
        runs.append(run)
        argv = [PYTHON, "-c", SPAWN, str(ROOT), str(tmp_path), json.dumps(encode(order))]
        said = subprocess.run(argv, check=True, timeout=20, capture_output=True, text=True)
        assert said.stdout == "ready\n", (said.stdout, said.stderr)
        return run

    yield begin
    for run in runs:
        for pid in run.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_ranks_run_and_their_files_have_global_names(start: Start) -> None:
    """Output goes to one file per rank and stream; the record says who ended how."""
    run = start("print=hello", "err=oops", "env=PYTHON_EXEC", "cat")
    assert run.ended().state is State.SUCCEEDED
    attempt = Path(run.folder.attempt(0))
    for rank in (0, 1):
        out = (attempt / f"rank_{rank}.out").read_text()
        assert out == "hello\nPYTHON_EXEC=None\nstdin: ''\n"
        assert (attempt / f"rank_{rank}.err").read_text() == "oops\n"
    assert {(body.rank, body.code) for body in run.bodies(RankExited)} == {(0, 0), (1, 0)}
    assert run.bodies(RankExited)[0].max_rss > 1 << 20
    assert run.state()["state"] == "succeeded"
    assert run.processes() == []


def test_a_failing_rank_is_named_with_its_code(start: Start) -> None:
    """The rank's own exit code is on record, and the program's."""
    run = start("fail=1:3", "sleep=600")
    assert run.ended().state is State.FAILED
    codes = {body.rank: (body.code, body.signal) for body in run.bodies(RankExited)}
    assert codes[1] == (3, None)
    assert codes[0] == (None, signal.SIGTERM)
    assert run.bodies(ProgramExited) == [ProgramExited(code=1)]
    assert run.processes() == []


def test_a_rank_that_dies_by_a_signal_is_on_record_with_it(start: Start) -> None:
    """A segmentation fault is a segmentation fault, not an exit code."""
    run = start("kill=11", ranks=1)
    run.ended()
    assert [(b.code, b.signal) for b in run.bodies(RankExited)] == [(None, signal.SIGSEGV)]


def test_stop_is_polite_first(start: Start) -> None:
    """TERM ends what listens to it, before the grace is over."""
    run = start("sleep=600", grace_s=60)
    run.started()
    run.say("s")
    assert run.ended(10).state is State.STOPPED
    assert run.processes() == []


def test_deaf_ranks_and_their_daemons_end_with_the_grace(start: Start) -> None:
    """Ranks that ignore TERM, and a deaf child in a session of its own, are gone after it."""
    run = start("daemon", "deaf", "sleep=600", grace_s=1)
    run.started()
    run.until(lambda: len(run.processes()) >= 7)
    began = time.monotonic()
    run.say("s")
    ended = run.ended(10)
    assert ended.state is State.STOPPED
    assert ended.killed >= 4
    assert time.monotonic() - began < 4
    assert run.processes() == []


def test_hurry_skips_the_grace(start: Start) -> None:
    """A second word ends it at once."""
    run = start("deaf", "sleep=600", grace_s=60)
    run.started()
    run.say("s")
    run.say("k")
    assert run.ended(5).state is State.STOPPED


def test_what_a_rank_leaves_behind_ends_with_it(start: Start) -> None:
    """A daemon that outlives its rank does not outlive the run."""
    run = start("daemon", ranks=1, grace_s=0.3)
    ended = run.ended(10)
    assert (ended.state, ended.killed) == (State.SUCCEEDED, 1)
    assert run.processes() == []


def test_without_a_controller_it_stops(start: Start) -> None:
    """A supervisor that hears nobody for `disconnect_s` stops its run."""
    run = start("sleep=600", disconnect_s=0.5)
    ended = run.ended(10)
    assert ended.state is State.STOPPED
    assert "no controller" in ended.reason
    assert run.processes() == []


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV])
def test_the_guardian_ends_what_a_dead_supervisor_left(start: Start, signum: int) -> None:
    """Its end is on record, with the reason, and nothing is left."""
    run = start("daemon", "deaf", "sleep=600")
    run.started()
    os.kill(run.supervisor(), signum)
    ended = run.ended(10)
    assert ended.state is State.FAILED
    assert f"signal {int(signum)}" in ended.reason
    run.until(lambda: run.processes() == [])
    assert [event.seq for event in run.events()] == list(range(1, len(run.events()) + 1))


def test_the_supervisor_ends_the_run_when_its_guardian_dies(start: Start) -> None:
    """No half of the pair works alone."""
    run = start("daemon", "deaf", "sleep=600", grace_s=0.5)
    run.started()
    stat = Path(f"/proc/{run.supervisor()}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    assert run.ended(10).state is State.STOPPED
    assert run.processes() == []


def test_a_killed_program_takes_its_ranks_with_it(start: Start) -> None:
    """SIGKILL of torchrun leaves no rank; the ranks' ends count as its consequence."""
    run = start("deaf", "sleep=600", grace_s=0.3)
    run.started()
    (program,) = run.bodies(ProgramStarted)
    os.kill(program.pid, signal.SIGKILL)
    assert run.ended(10).state is State.FAILED
    assert run.bodies(ProgramExited) == [ProgramExited(signal=9)]
    assert run.processes() == []


def test_a_killed_shim_takes_its_rank_with_it(start: Start) -> None:
    """Nobody saw how such a rank ended, and the record says just that."""
    run = start("deaf", "sleep=600", ranks=1)
    run.started()
    rank = run.bodies(RankStarted)[0].pid
    shim = int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(shim, signal.SIGKILL)
    assert run.ended(10).state is State.FAILED
    assert [(b.code, b.signal) for b in run.bodies(RankExited)] == [(None, None)]
    assert run.processes() == []


def test_a_program_that_is_not_there_is_a_clear_failure(start: Start) -> None:
    """What could not be started is named, with the reason."""
    run = start(argv=("/no/such/python", "-m", "torch.distributed.run"))
    assert run.ended().state is State.FAILED
    (exited,) = run.bodies(ProgramExited)
    assert "cannot start /no/such/python" in exited.error
    assert "No such file" in exited.error


def test_a_missing_rank_program_exits_127(start: Start) -> None:
    """As a shell would say it, and in the rank's own error file."""
    run = start(ranks=1, rank_prefix=("/no/such/interpreter",))
    run.ended()
    assert run.bodies(RankExited)[0].code == 127
    assert (
        "/no/such/interpreter: No such file"
        in (Path(run.folder.attempt(0)) / "rank_0.err").read_text()
    )


def test_a_second_supervisor_of_the_same_run_is_refused(start: Start, tmp_path: Path) -> None:
    """The lock is held for life."""
    run = start("sleep=600", ranks=1)
    argv = [PYTHON, "-c", SPAWN, str(ROOT), str(tmp_path), json.dumps(encode(run.order))]
    said = subprocess.run(argv, check=True, timeout=20, capture_output=True, text=True)
    assert "this run has a supervisor here already" in said.stdout
    run.say("k")
    run.ended()


def test_nothing_on_disk_can_be_read_by_others(start: Start) -> None:
    """Files 0600, folders 0700."""
    run = start("print=x", ranks=1)
    run.ended()
    for path in [Path(run.folder.root), *Path(run.folder.root).rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
