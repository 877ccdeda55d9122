"""Proof of death, with real processes that do their worst to survive.

Once with a cgroup of the run's own, once where none can be made.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from runner.core.wire.events import Ended, ProgramExited, ProgramStarted, RankStarted
from runner.core.wire.states import ReasonKind, State
from runner.core.wire.timing import KILL_TIMEOUT_S
from runner.host.process import cgroup
from runner.host.storage import garbage
from tests.lab.supervising import RECOVER_CODE, RunStarter, SupervisedRun
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.promise(2)]

HOLDER = """
import ctypes, sys, time
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long] * 4
assert libc.ptrace(int(sys.argv[2]), int(sys.argv[1]), 0, int(sys.argv[3])) == 0
print("held", flush=True)
time.sleep(600)
"""
ATTACH = 16
SEIZE = 0x4206
TRACE_EXIT = 0x40


def can_divide() -> bool:
    made = cgroup.create("can", "divide", os.getpid())
    made.remove()
    return bool(made.path)


def read_only() -> list[str]:
    """A command that runs another where every cgroup of version 2 is read-only."""
    mounts = [f"/{mount}" for mount in cgroup.UNIFIED_MOUNTS]
    found = [mount for mount in mounts if Path(mount, "cgroup.controllers").exists()]
    lock = " && ".join(f"mount -o remount,ro,bind {mount}" for mount in found) or "true"
    return ["unshare", "--mount", "sh", "-c", f'{lock} && exec "$@"', "sh"]


@pytest.fixture(params=["cgroup", "no cgroup"])
def inside(request: pytest.FixtureRequest) -> Sequence[str]:
    """How to start a run: with a cgroup of its own, or without."""
    if request.param == "cgroup" and not can_divide():
        pytest.skip("no cgroup can be made here")
    if request.param == "no cgroup" and os.getuid():
        pytest.skip("only root can make cgroups read-only")
    return [] if request.param == "cgroup" else read_only()


WITHOUT_FIRST = pytest.mark.parametrize(
    "inside", [pytest.param("cgroup", marks=pytest.mark.all), "no cgroup"], indirect=True
)
"""Of those where a cgroup makes it easy."""


@contextlib.contextmanager
def traced(pid: int, request: int, options: int = 0) -> Iterator[None]:
    """Trace a process, by a debugger that sleeps."""
    argv = [sys.executable, "-c", HOLDER, str(pid), str(request), str(options)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout
            assert holder.stdout.readline() == "held\n"
            yield
        finally:
            holder.kill()


def home(run: SupervisedRun) -> str:
    (program,) = run.bodies(ProgramStarted)
    path = program.cgroup
    assert isinstance(path, str)
    return path


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


def gone(run: SupervisedRun) -> None:
    """Nothing carries the mark, and the cgroup on record is removed."""
    assert run.processes() == []
    run.until(lambda: not home(run) or not Path(home(run)).exists())


def test_program_has_a_cgroup_and_leaves_none(start: RunStarter, inside: Sequence[str]) -> None:
    """Supervisor and guardian stay outside; where none can be made, all goes on without."""
    run = start("daemon", "sleep=600", wrapper=inside)
    run.wait_started()

    assert bool(home(run)) == (not inside)
    members = cgroup.Cgroup(home(run)).pids
    assert not {run.supervisor(), parent(run.supervisor())}.intersection(members())
    # The program may still be starting its daemon.
    wait_until(lambda: set(members()) == (set() if inside else set(run.processes())), "all in it")
    rank = run.bodies(RankStarted)[0].pid
    own, shim, its = map(oom_score, (run.supervisor(), parent(rank), rank))
    assert its == min(1000, own + 300), "memory is taken from ranks first"
    assert own == shim
    run.send_command("stop")
    ended = run.wait_ended()

    assert (ended.state, ended.verified) == (State.STOPPED, True)
    gone(run)


@pytest.mark.all
def test_what_made_cgroups_of_its_own_leaves_none(start: RunStarter) -> None:
    """Folders below ours go with it."""
    if not can_divide():
        pytest.skip("no cgroup can be made here")
    run = start("sleep=600")
    run.wait_started()
    nested = Path(home(run)) / "inner" / "most"
    nested.mkdir(parents=True)
    (nested / "cgroup.procs").write_text(str(run.bodies(RankStarted)[0].pid))

    run.send_command("kill")
    ended = run.wait_ended()

    assert (ended.verified, ended.survivors) == (True, ())
    gone(run)


@WITHOUT_FIRST
def test_missing_program_leaves_no_cgroup(start: RunStarter, inside: Sequence[str]) -> None:
    """It was made for nothing, and goes; what could not be started is named, with the reason."""
    run = start(launcher=("/no/such/python",), wrapper=inside)

    assert run.wait_ended().state is State.FAILED
    (exited,) = run.bodies(ProgramExited)
    assert exited.error.startswith("cannot start /no/such/python in ")
    assert exited.error.endswith(": No such file or directory")
    name = cgroup._cgroup_name(run.order.run_id, "here", 0)
    run.until(lambda: not Path(cgroup.own_folder(), name).exists())


@pytest.mark.parametrize(
    ("inside", "way"),
    [
        ("cgroup", "forks"),
        ("no cgroup", "hops"),
        pytest.param("cgroup", "hops", marks=pytest.mark.all),
        pytest.param("no cgroup", "forks", marks=pytest.mark.all),
        pytest.param("no cgroup", "zombies=20", marks=pytest.mark.all),
    ],
    indirect=["inside"],
)
def test_odd_ranks_end_with_the_grace(start: RunStarter, inside: Sequence[str], way: str) -> None:
    """Zombies are not waited for; whoever forks is caught."""
    run = start("deaf", way, "sleep=600", wrapper=inside)
    run.wait_started()
    run.send_command("stop")
    ended = run.wait_ended()

    assert (ended.survivors, ended.verified) == ((), True)
    gone(run)


@pytest.mark.all
def test_rank_that_a_debugger_holds_ends_with_the_grace(
    start: RunStarter, inside: Sequence[str]
) -> None:
    """It is stopped, and sees no TERM; KILL needs no cooperation, and a zombie is left."""
    run = start("deaf", "sleep=600", ranks=1, wrapper=inside)
    run.wait_started()
    with traced(run.bodies(RankStarted)[0].pid, ATTACH):
        run.send_command("stop")
        ended = run.wait_ended()
    assert (ended.state, ended.survivors, ended.verified) == (State.STOPPED, (), True)
    gone(run)


def test_rank_that_a_debugger_keeps_from_exiting_is_named(start: RunStarter) -> None:
    """SIGKILL cannot pass a tracer that asked for the exit stop; we say so, and end.

    The cgroup stays with it, for `clean` to remove.
    """
    run = start("deaf", "sleep=600", ranks=1, grace_s=0.1)
    run.wait_started()
    rank = run.bodies(RankStarted)[0].pid
    with traced(rank, SEIZE, TRACE_EXIT):
        run.send_command("stop")
        ended = run.wait_ended(KILL_TIMEOUT_S + 5)
    home_before = home(run)

    assert (ended.state, ended.survivors) == (State.STUCK, (rank,))
    run.until(lambda: not alive(rank))
    if home_before:  # the kernel takes the dead out of it in its own time
        run.until(cgroup.Cgroup(home_before).wait_empty)

    def cleaned() -> bool:  # not while its guardian is still about to leave
        for _ in garbage.collect_garbage(run.order.workdir, run.order.node, 0, dry_run=False):
            pass
        return not home_before or not Path(home_before).exists()

    run.until(cleaned)


@pytest.mark.parametrize(
    ("inside", "way"),
    [
        ("cgroup", "hops"),
        ("no cgroup", "sleep=600"),
        pytest.param("cgroup", "forks", marks=pytest.mark.all),
        pytest.param("no cgroup", "forks", marks=pytest.mark.all),
        pytest.param("no cgroup", "hops", marks=pytest.mark.all),
    ],
    indirect=["inside"],
)
def test_after_both_died_what_is_left_is_found(
    start: RunStarter, inside: Sequence[str], way: str
) -> None:
    """By its cgroup, which proves it, or by mark and blood, which do not."""
    run = start("daemon", "zombies=3", "deaf", way, wrapper=inside)
    run.wait_started()
    with contextlib.suppress(ProcessLookupError):  # one that hops is elsewhere by now
        os.kill(run.bodies(RankStarted)[0].pid, signal.SIGSTOP)
    ended = recover(run)

    assert (ended.state, ended.survivors) == (State.FAILED, ())
    assert ended.verified == (not inside)
    assert ended.reason is not None
    assert ended.reason.kind is ReasonKind.SUPERVISOR
    gone(run)


@pytest.mark.all
def test_after_both_died_only_a_cgroup_has_an_orphan_without_a_mark(
    start: RunStarter, inside: Sequence[str], tmp_path: Path
) -> None:
    """The record says when none has proven that there is none."""
    path = tmp_path / "orphan"
    run = start("deaf", f"escape={path}", "sleep=600", ranks=1, wrapper=inside)
    run.until(path.exists)
    run.wait_started()
    orphan = int(path.read_text())
    assert orphan not in run.processes()
    ended = recover(run)

    is_found = not alive(orphan)
    if not is_found:
        os.kill(orphan, signal.SIGKILL)
    assert is_found == (not inside)
    assert ended.verified == (not inside)
    gone(run)


@WITHOUT_FIRST
def test_after_both_died_a_child_without_a_mark_is_found_by_blood(
    start: RunStarter, inside: Sequence[str]
) -> None:
    """Its parent has the mark; a shell that started something with the mark has not."""
    run = start("bare", "deaf", "sleep=600", ranks=1, wrapper=inside)
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
    gone(run)


@pytest.mark.all
def test_after_both_died_none_is_orphaned_by_the_killing(
    start: RunStarter, inside: Sequence[str]
) -> None:
    """Who starts children without a mark, in sessions of their own, is stopped before it dies."""
    seconds = str(time.monotonic_ns() / 1e9)

    def shed() -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if entry.joinpath("cmdline").read_text() == f"/bin/sleep\0{seconds}\0":
                    found.append(int(entry.name))
        return found

    run = start("deaf", f"sheds={seconds}", ranks=1, wrapper=inside)
    run.until(shed)
    recover(run)
    left = shed()
    for pid in left:
        os.kill(pid, signal.SIGKILL)

    assert left == []
    gone(run)


@WITHOUT_FIRST
def test_child_without_its_first_thread_is_no_zombie(
    start: RunStarter, inside: Sequence[str], tmp_path: Path
) -> None:
    """The kernel shows it as one, and it runs on."""
    path = tmp_path / "headless"
    run = start("deaf", f"headless={path}", ranks=1, grace_s=0.3, wrapper=inside)
    ended = run.wait_ended()

    assert (ended.state, ended.killed, ended.verified) == (State.SUCCEEDED, 1, True)
    run.until(lambda: not Path(f"/proc/{path.read_text()}").exists())


@WITHOUT_FIRST
def test_after_a_dead_supervisor_the_guardian_proves_it(
    start: RunStarter, inside: Sequence[str]
) -> None:
    """It saw all of the run, whatever became of the environment, and goes on with its record."""
    run = start("daemon", "deaf", "hops", wrapper=inside)
    run.wait_started()
    os.kill(run.supervisor(), signal.SIGKILL)
    ended = run.wait_ended()

    assert (ended.state, ended.survivors, ended.verified) == (State.FAILED, (), True)
    assert ended.reason is not None
    assert "signal 9" in ended.reason.text
    assert [event.seq for event in run.events()] == list(range(1, len(run.events()) + 1))
    gone(run)
