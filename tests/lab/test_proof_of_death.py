"""Proof of death, with real processes that do their worst to survive."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.core.wire.events import Ended, ProgramExited, RankStarted
from runner.core.wire.states import ReasonKind, State
from runner.core.wire.timing import KILL_TIMEOUT_S
from tests.lab.supervising import RECOVER_CODE, RunStarter, SupervisedRun

pytestmark = [pytest.mark.promise(2)]

HOLDER = """
import ctypes, sys, time
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long] * 4
seize, trace_exit = 0x4206, 0x40
assert libc.ptrace(seize, int(sys.argv[1]), 0, trace_exit) == 0
print("held", flush=True)
time.sleep(600)
"""


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def recover(run: SupervisedRun) -> Ended:
    """Kill supervisor and guardian so that neither sees the other's end; an agent finds the rest.

    Returned is what is on record then.
    """
    pids = [run.supervisor(), parent(run.supervisor())]
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, signum)
    run.until(lambda: not any(map(alive, pids)))
    run.run_as_agent(RECOVER_CODE)
    return run.wait_ended()


def test_ranks_are_the_first_to_lose_memory(start: RunStarter) -> None:
    """A shim is as safe as the supervisor."""
    run = start("sleep=600", ranks=1)
    run.wait_started()
    rank = run.bodies(RankStarted)[0].pid
    own, shim, its = map(oom_score, (run.supervisor(), parent(rank), rank))
    assert its == min(1000, own + 300)
    assert own == shim
    run.send_command("kill")
    run.wait_ended()


def test_what_could_not_be_started_is_named(start: RunStarter) -> None:
    """With the reason."""
    run = start(launcher=("/no/such/python",))

    assert run.wait_ended().state is State.FAILED
    (exited,) = run.bodies(ProgramExited)
    assert exited.error.startswith("cannot start /no/such/python in ")
    assert exited.error.endswith(": No such file or directory")


@pytest.mark.parametrize("way", ["hops", pytest.param("forks", marks=pytest.mark.all)])
def test_odd_ranks_end_with_the_grace(start: RunStarter, way: str) -> None:
    """Zombies are not waited for; whoever forks is caught."""
    run = start("deaf", "zombies=3", way)
    run.wait_started()
    run.send_command("stop")
    ended = run.wait_ended()

    assert (ended.survivors, ended.verified) == ((), True)
    assert run.processes() == []


def test_rank_that_a_debugger_keeps_from_exiting_is_named(start: RunStarter) -> None:
    """SIGKILL cannot pass a tracer that asked for the exit stop; we say so, and end."""
    run = start("deaf", "sleep=600", ranks=1, grace_s=0.1)
    run.wait_started()
    rank = run.bodies(RankStarted)[0].pid
    argv = [sys.executable, "-c", HOLDER, str(rank)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout
            assert holder.stdout.readline() == "held\n"
            run.send_command("stop")
            ended = run.wait_ended(KILL_TIMEOUT_S + 5)
        finally:
            holder.kill()
    assert (ended.state, ended.survivors) == (State.STUCK, (rank,))
    run.until(lambda: not alive(rank))


@pytest.mark.parametrize("way", ["sleep=600", pytest.param("forks", marks=pytest.mark.all)])
def test_after_both_died_what_is_left_is_found(start: RunStarter, way: str) -> None:
    """By mark and blood, which prove nothing: who hops from process to process can evade a look."""
    run = start("daemon", "zombies=3", "deaf", way)
    run.wait_started()
    os.kill(run.bodies(RankStarted)[0].pid, signal.SIGSTOP)
    ended = recover(run)

    assert (ended.state, ended.survivors) == (State.FAILED, ())
    assert not ended.verified
    assert ended.reason is not None
    assert ended.reason.kind is ReasonKind.SUPERVISOR
    assert run.processes() == []


def test_after_both_died_a_child_without_a_mark_is_found_by_blood(start: RunStarter) -> None:
    """Its parent has the mark; a shell that started something with the mark has not."""
    run = start("bare", "deaf", "sleep=600", ranks=1)
    run.wait_started()
    rank = run.bodies(RankStarted)[0].pid
    children = Path(f"/proc/{rank}/task/{rank}/children")
    run.until(children.read_text)
    bare = [int(word) for word in children.read_text().split()]
    assert bare
    run.until(lambda: not set(bare).intersection(run.processes()))  # it has the mark until its exec
    marks = f"RUNNER_RUN_ID={run.order.run_id} RUNNER_NODE=here"
    line = f"sleep 601 & echo $!; {marks} sleep 602 & echo $!; wait; exec sleep 603"
    with subprocess.Popen(
        ["sh", "-c", line], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as shell:
        assert shell.stdout
        beside, pasted = int(shell.stdout.readline()), int(shell.stdout.readline())
        run.until(lambda: pasted in run.processes())
        recover(run)
        left = [*map(alive, [shell.pid, beside, pasted, *bare])]
        os.killpg(shell.pid, signal.SIGKILL)

    assert left == [True, True, False, *[False for _ in bare]]
    assert run.processes() == []


@pytest.mark.all
def test_after_both_died_none_is_orphaned_by_the_killing(start: RunStarter) -> None:
    """Who starts children without a mark, in sessions of their own, is stopped before it dies."""
    seconds = str(time.monotonic_ns() / 1e9)

    def shed() -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if entry.joinpath("cmdline").read_text() == f"/bin/sleep\0{seconds}\0":
                    found.append(int(entry.name))
        return found

    run = start("deaf", f"sheds={seconds}", ranks=1)
    run.until(shed)
    recover(run)
    left = shed()
    for pid in left:
        os.kill(pid, signal.SIGKILL)

    assert left == []
    assert run.processes() == []


def test_child_without_its_first_thread_is_no_zombie(start: RunStarter, tmp_path: Path) -> None:
    """The kernel shows it as one, and it runs on."""
    path = tmp_path / "headless"
    run = start("deaf", f"headless={path}", ranks=1, grace_s=0.3)
    ended = run.wait_ended()

    assert (ended.state, ended.killed, ended.verified) == (State.SUCCEEDED, 1, True)
    run.until(lambda: not Path(f"/proc/{path.read_text()}").exists())


def test_after_a_dead_supervisor_the_guardian_proves_it(start: RunStarter) -> None:
    """It saw all of the run, whatever became of the environment, and goes on with its record."""
    run = start("daemon", "deaf", "hops")
    run.wait_started()
    os.kill(run.supervisor(), signal.SIGKILL)
    ended = run.wait_ended()

    assert (ended.state, ended.survivors, ended.verified) == (State.FAILED, (), True)
    assert ended.reason is not None
    assert "signal 9" in ended.reason.text
    assert [event.seq for event in run.events()] == list(range(1, len(run.events()) + 1))
    assert run.processes() == []
