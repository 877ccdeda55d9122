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
    """Asked for from elsewhere, also as data; the ranks do not notice.

    Which of two runs is meant is said.
    """
    other = on_lab.rank_overrides("wait=/dev/shm/go")
    on_lab.succeed("cluster=lab", "run_id=other", "detach=true", *other)
    running = on_lab.start("cluster=lab", *LATE)
    running.until_printed("waiting")
    running.until_printed("loading")
    shown = on_lab.succeed("stacks", "--cluster", "lab")
    assert f"this is run {running.run_id} (hanging), the latest; also running: other" in shown.err
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
    for name in BOTH:
        lab[name].sh("touch /dev/shm/go")
    partly = on_lab.succeed("stacks", "--run", running.run_id)
    assert "rank 1 on node2, python" in partly.out, partly
    assert "it did not answer; it was stopped (SIGSTOP)" in partly.out
    assert "and rank 0 on node1 has ended" in partly.out
    assert "note: this is" not in partly.err
    lab["node2"].kill(rank.pid, signal.SIGCONT)
    go(lab, "node2")
    done = running.wait()
    assert done.code == 0, done
    assert (done.folder / "logs" / "node2" / "stacks.out").read_text().count("=== stacks") == 3


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


@pytest.mark.all
@pytest.mark.slow
def test_a_detached_run_that_hangs_is_ended_by_its_hosts(lab: Lab, on_lab: Launcher) -> None:
    """Nobody watches but they; who waited for whom is on record there, and comes home."""
    on_lab.succeed("cluster=lab4", *LATE, *STALL, "watch.action=stop", "detach=true")
    wait_until(lambda: not lab.leftovers(), "the hosts to end it", timeout=60)
    told = on_lab.succeed("why", "--cluster", "lab4")
    assert "first failure: no rank made progress for" in told.out
    assert "rank 1, innermost call first:" in told.out
    assert "load_batch (" in told.out
