"""Runs that hang: the report names the rank that the others wait for, and shows stacks."""

from __future__ import annotations

import json
import re
import signal

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import PLAIN_ENTRY, PROGRAMS, Launcher
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.promise(4)]

HANGING = str(PROGRAMS / "hanging.py")
STALL = ("watch.stall_s=2", "grace_s=1")


def words(how: str, late: int, *more: str) -> list[str]:
    """A run on the lab in which one rank is late."""
    args = json.dumps([how, str(late)])
    return [
        *("cluster=lab", f"task.script={HANGING}", "task.args_style=raw", f"task.args={args}"),
        *more,
    ]


def go(lab: Lab, *nodes: str) -> None:
    """Let the ranks there go on."""
    for name in nodes or lab.hosts:
        lab[name].sh('for work in ~/.runner/runs/*/*/work; do touch "$work/go"; done')


def test_stacks_of_a_run_that_goes_on(lab: Lab, on_lab: Launcher) -> None:
    """Asked for from elsewhere: equal ones are one, also as data; the ranks do not notice."""
    running = on_lab.start(*words("wait", 1), PLAIN_ENTRY)
    running.until_printed("waiting", 3)
    shown = on_lab("stacks", "--cluster", "lab")
    assert shown.code == 0, shown
    assert "rank 1 on node2, innermost first:\n    load_batch" in shown.out
    assert "ranks 0, 2-3 on node[1,3-4], innermost first:\n    wait  " in shown.out
    data = json.loads(on_lab("stacks", "--cluster", "lab", "--json").out)
    assert [group["ranks"] for group in data["groups"]] == [[1], [0, 2, 3]]
    assert data["groups"][0]["frames"][0]["function"] == "load_batch"
    (late,) = (
        process.pid
        for process in lab["node4"].processes("hanging.py wait".replace(" ", "\0"))
        if not {"rank.py", "torch.distributed.run"} & set(re.split(r"[ /]", process.cmdline))
    )
    lab["node4"].kill(late, signal.SIGSTOP)
    go(lab, "node1", "node2", "node3")
    running.until_printed("done", 3)
    partly = on_lab("stacks", "--cluster", "lab")
    assert "rank 3 on node4, python" in partly.out, partly
    assert "it did not answer; it was stopped (SIGSTOP)" in partly.out
    assert "and ranks 0-2 have ended" in partly.out
    lab["node4"].kill(late, signal.SIGCONT)
    go(lab)
    done = running.wait()
    assert done.code == 0, done
    assert (done.folder / "logs" / "node2" / "stacks.out").read_text().count("=== stacks") == 2


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
    task = ["task.script=reduce.py", "task.args_style=raw", PLAIN_ENTRY, "detach=true"]
    where = ["cluster=lab", "cluster.only=[node1,node2]"]
    for run_id, busy_s in ("hung", "0"), ("healthy", "0.02"):
        started = on_lab(*where, *task, f"task.args=['{busy_s}']", f"run_id={run_id}")
        assert started.code == 0, started

    def each_rank_is_up() -> bool:
        count = "cat ~/.runner/runs/*/*/attempt_0/rank_*.out | grep -c up || true"
        return all(lab[name].sh(count) == "2\n" for name in ("node1", "node2"))

    wait_until(each_rank_is_up, "both runs")
    healthy = on_lab("stacks", "--cluster", "lab")
    assert healthy.out.startswith("ranks 0-1 are moving, in all_reduce\n"), healthy
    assert "note: this is run healthy (reduce), the latest; also running: --run hung (reduce)" in (
        healthy.err
    )
    hung = on_lab("stacks", "--cluster", "lab", "--run", "hung")
    assert hung.out.startswith("ranks 0-1 wait in all_reduce, all at the same place"), hung
    assert "note: this is" not in hung.err
    go(lab, "node1", "node2")


def test_a_standstill_is_reported_and_ends(lab: Lab, on_lab: Launcher) -> None:
    """By default nothing is stopped: what stands is shown, and said when it moves again."""
    running = on_lab.start(*words("wait", 2, *STALL), "cluster.exclude=[node4]")
    running.until(lambda: "no progress on any rank for" in running.err, "the report")
    running.until(lambda: "rank 2 on node3, innermost first:" in running.err, "the stacks")
    assert running.err.count("innermost first:") == 2
    go(lab, "node1", "node2")
    running.until(lambda: "the run makes progress again" in running.err, "the end of it")
    go(lab, "node3")
    done = running.wait()
    assert done.code == 0, done
    assert done.err.count("no progress on any rank") == 1
    assert "the run makes progress again" in done.err


def test_a_detached_run_that_hangs_is_ended_by_its_hosts(lab: Lab, on_lab: Launcher) -> None:
    """Nobody watches but they; who waited for whom is on record there, and comes home."""
    done = on_lab(*words("wait", 2), *STALL, "watch.action=stop", "detach=true", PLAIN_ENTRY)
    assert done.code == 0, done
    wait_until(lambda: not lab.leftovers(), "the hosts to end it", timeout=30)
    told = on_lab("why", "--cluster", "lab")
    assert told.code == 0, told
    assert "first failure: no rank made progress for" in told.out
    assert "rank 2, innermost call first:" in told.out
    assert "load_batch (" in told.out


def test_a_rank_that_computes_for_ever_makes_no_step(lab: Lab, on_lab: Launcher) -> None:
    """Where steps are written down, that is seen."""
    watch = ("watch.metrics=[metrics.jsonl]", "watch.action=stop", "watch.stall_s=5")
    done = on_lab(*words("spin", 1), *STALL, *watch, "cluster.only=[node1,node2]", PLAIN_ENTRY)
    assert done.code == 1, done
    assert "first failure: no rank made progress for" in done.err
    assert "spin (" in done.err
    assert lab.wait_idle() == {}
