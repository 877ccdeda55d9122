"""Runs that hang: the report names the rank that the others wait for, and shows stacks."""

from __future__ import annotations

import json
import signal

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import PLAIN_ENTRY, Launcher, program
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.promise(4)]

LATE = (*program("hanging.py", "wait", "1"), PLAIN_ENTRY)
"""Ranks of which the second never joins what the other waits in."""

STALL = ("watch.stall_s=10", "grace_s=1")
BOTH = ("node1", "node2")


def go(lab: Lab, *nodes: str) -> None:
    for name in nodes:
        lab[name].sh('for work in ~/.runner/runs/*/*/work; do touch "$work/go"; done')


def test_stacks_of_a_run_that_goes_on(lab: Lab, on_lab: Launcher) -> None:
    """Asked for from elsewhere, also as data; the ranks do not notice."""
    running = on_lab.start("cluster=lab", *LATE)
    running.until_printed("waiting")
    running.until_printed("loading")
    shown = on_lab("stacks", "--cluster", "lab")
    assert shown.code == 0, shown
    assert "rank 1 on node2, innermost first:\n    load_batch" in shown.out
    assert "rank 0 on node1, innermost first:\n    wait  " in shown.out
    data = json.loads(on_lab("stacks", "--cluster", "lab", "--json").out)
    places = {group["ranks"][0]: group["frames"][0]["function"] for group in data["groups"]}
    assert places == {0: "wait", 1: "load_batch"}
    found = lab["node2"].processes("hanging.py\0wait")
    (rank,) = (each for each in found if "attempt_0" not in each.cmdline)
    lab["node2"].kill(rank.pid, signal.SIGSTOP)
    go(lab, "node1")  # whose supervisor stays: it is the hub
    running.until_printed("done")
    partly = on_lab("stacks", "--cluster", "lab")
    assert partly.code == 0, partly
    assert "rank 1 on node2, python" in partly.out, partly
    assert "it did not answer; it was stopped (SIGSTOP)" in partly.out
    assert "and rank 0 on node1 has ended" in partly.out
    lab["node2"].kill(rank.pid, signal.SIGCONT)
    go(lab, "node2")
    done = running.wait()
    assert done.code == 0, done
    assert (done.folder / "logs" / "node2" / "stacks.out").read_text().count("=== stacks") == 3


C10D = """
import os, time
def all_reduce(busy_s):
    print("up", flush=True)
    while not os.path.exists("go"):
        end = time.process_time() + busy_s
        while time.process_time() < end: pass
        time.sleep(0.1)
"""


def test_nobody_is_accused_while_the_ranks_move(lab: Lab, on_lab: Launcher) -> None:
    """Of two runs in the same call one computes, the other hangs; which one is meant is said."""
    package = on_lab.folder / "torch" / "distributed"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "distributed_c10d.py").write_text(C10D)
    (on_lab.folder / "reduce.py").write_text(
        "import sys\nfrom torch.distributed.distributed_c10d import all_reduce\n"
        "all_reduce(float(sys.argv[1]))\n"
    )
    task = ["task.script=reduce.py", PLAIN_ENTRY, "detach=true"]
    for run_id, busy_s in ("hung", "0"), ("healthy", "0.02"):
        started = on_lab("cluster=lab", *task, f"task.args_after=['{busy_s}']", f"run_id={run_id}")
        assert started.code == 0, started

    def each_rank_is_up() -> bool:
        count = "cat ~/.runner/runs/*/*/attempt_0/rank_*.out | grep -c up || true"
        return all(lab[name].sh(count) == "2\n" for name in BOTH)

    wait_until(each_rank_is_up, "both runs")
    healthy = on_lab("stacks", "--cluster", "lab")
    assert healthy.out.startswith("ranks 0-1 are moving, in all_reduce\n"), healthy
    assert "note: this is run healthy (reduce), the latest; also running: hung" in healthy.err
    hung = on_lab("stacks", "--cluster", "lab", "--run", "hung")
    assert hung.out.startswith("ranks 0-1 wait in all_reduce, all at the same place"), hung
    assert "note: this is" not in hung.err
    go(lab, *BOTH)


@pytest.mark.slow
def test_a_standstill_is_reported_and_ends(lab: Lab, on_lab: Launcher) -> None:
    """By default nothing is stopped: what stands is shown, and said when it moves again."""
    words = on_lab.rank_overrides("wait=/dev/shm/go", "count=30/0.2", "wait=/dev/shm/end")
    running = on_lab.start("cluster=lab", *words, *STALL)
    running.until(lambda: "no progress on any rank for" in running.err, "the report")
    running.until(lambda: "innermost first:" in running.err, "the stacks")
    lab["node1"].sh("touch /dev/shm/go")
    running.until(lambda: "the run makes progress again" in running.err, "the end of it")
    for node in BOTH:
        lab[node].sh("touch /dev/shm/go /dev/shm/end")
    done = running.wait()
    assert done.code == 0, done


CUT = """
import ctypes
while True:
    if ctypes.CDLL(None).poll(None, 0, 600_000) < 0:
        print("the wait was cut", flush=True)
"""


@pytest.mark.slow
def test_what_the_dump_makes_ranks_print_does_not_end_the_standstill(
    on_lab: Launcher,
) -> None:
    """Nor what one asked for by hand does: the run is stopped once, and for all."""
    (on_lab.folder / "cut.py").write_text(CUT)
    task = ("task.script=cut.py", PLAIN_ENTRY)
    running = on_lab.start("cluster=lab", *task, *STALL, "watch.action=stop")
    running.until_joined()
    asked = on_lab("stacks", "--cluster", "lab")
    assert asked.code == 0, asked
    running.until_printed("the wait was cut", 2)
    done = running.wait()
    assert done.code == 1, done
    assert done.err.count("the run is being stopped") == 1
    assert "first failure: no rank made progress for" in done.err
    assert "the run makes progress again" not in done.err


@pytest.mark.all
@pytest.mark.slow
def test_a_detached_run_that_hangs_is_ended_by_its_hosts(lab: Lab, on_lab: Launcher) -> None:
    """Nobody watches but they; who waited for whom is on record there, and comes home."""
    done = on_lab("cluster=lab4", *LATE, *STALL, "watch.action=stop", "detach=true")
    assert done.code == 0, done
    wait_until(lambda: not lab.leftovers(), "the hosts to end it", timeout=60)
    told = on_lab("why", "--cluster", "lab4")
    assert told.code == 0, told
    assert "first failure: no rank made progress for" in told.out
    assert "rank 1, innermost call first:" in told.out
    assert "load_batch (" in told.out
