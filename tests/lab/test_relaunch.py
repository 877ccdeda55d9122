"""Relaunch by the controller: on which nodes, from which step, how often, and its end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from runner.core.wire.codec import decode
from runner.core.wire.states import Reason
from tests.lab.counting import LOST, counted, start_counting, whole
from tests.lab.lab import Lab
from tests.lab.launching import Controller, Launcher, Result
from tests.lab.waiting import wait_until


@pytest.fixture
def begin(on_lab: Launcher, steps: Path) -> Callable[..., Controller]:
    """Start two ranks that count steps, with node3 as a spare; `when` is of `steps.py`."""

    def start(*overrides: str, when: tuple[str, ...] = (), spare: bool = True) -> Controller:
        nodes = () if spare else ("cluster.only=[node1,node2]",)
        return start_counting(on_lab, steps, "0.1/0.03", when, (*nodes, *overrides))

    return start


def nodes_of(steps: Path, attempt: int) -> list[str]:
    return [
        next(node for _, number, node in counted(steps, rank) if number == attempt)
        for rank in range(2)
    ]


def past(done: Result) -> list[dict[str, object]]:
    found: list[dict[str, object]] = done.result["past_attempts"]
    return [{**each, "reason": decode(Reason, each["reason"]).text} for each in found]


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("task.entry=plain", id="plain"),
        pytest.param("task.entry=torchrun", id="torchrun", marks=pytest.mark.all),
        pytest.param("rendezvous=c10d", id="host of the c10d store", marks=pytest.mark.all),
    ],
)
def test_a_host_without_power_is_replaced(
    lab: Lab, begin: Callable[..., Controller], steps: Path, how: str
) -> None:
    """The spare takes the master's place, and every rank goes on from its last step."""
    entry = () if how.startswith("task.entry") else ("task.entry=torchrun",)
    controller = begin(*entry, how, when=LOST)
    controller.until_printed("step 5", 2)
    lab["node1"].power_off()
    done = controller.wait()
    assert done.code == 0, done
    whole(steps)
    assert nodes_of(steps, 1) == ["node2", "node3"]
    assert "attempt 2 of 3: lost node1" in done.err, done
    assert "node3 takes the place of node1; starting in 0.5 s" in done.err, done
    (first,) = past(done)
    assert (first["nodes"], first["unverified"]) == (["node1", "node2"], ["node1"])
    end = done.err[done.err.index("after 1 relaunch:") :]
    assert "lost node1" in end, done
    assert "node1: could not verify that all processes ended" in end
    plan = json.loads((done.folder / "plan.json").read_text())
    assert [share["node"] for share in plan["nodes"]] == ["node2", "node3"]
    assert (done.folder / "plan.0.json").exists()


def test_a_rank_that_fails_once(begin: Callable[..., Controller], steps: Path) -> None:
    """Without a spare, on the same nodes; only the end of all is told."""
    target = f"notify=['echo $RUNNER_EVENT >> {steps}/told']"
    done = begin("relaunch.max=1", target, when=("fail=1:7:3",), spare=False).wait()
    assert done.code == 0, done
    assert (steps / "told").read_text() == "end\n"
    whole(steps)
    assert nodes_of(steps, 1) == ["node1", "node2"]
    assert "attempt 2 of 2: rank 1 on node2 exited with 3; on the same nodes" in done.err, done
    assert past(done)[0]["reason"] == "rank 1 on node2 exited with 3"
    assert (done.folder / "logs" / "node2" / "attempt_1" / "rank_1.out").exists()


@pytest.mark.parametrize("by", ["Ctrl-C", pytest.param("stop", marks=pytest.mark.all)])
def test_the_pause_can_be_interrupted(
    lab: Lab, begin: Callable[..., Controller], on_lab: Launcher, steps: Path, by: str
) -> None:
    """Here or from elsewhere: nothing is left, and no other attempt was begun."""
    controller = begin("relaunch.backoff_s=300", when=("fail=0:3:3",))
    controller.until(lambda: "starting in 300 s" in controller.err, "the pause")
    if by == "stop":
        listed = f"{controller.run_id} .*restarting"
        wait_until(lambda: re.search(listed, on_lab("ps", "--cluster", "lab4").out), "ps")
        on_lab.succeed("stop", "--run", controller.run_id, "--cluster", "lab4")
    else:
        controller.send()
    done = controller.wait(60)  # the pause would be longer
    assert done.code == 130, done
    assert "first failure: rank 0 on node1 exited with 3" in done.err
    assert done.result["state"] == "stopped"
    assert lab.wait_idle() == {}
    assert {attempt for rank in range(2) for _, attempt, _ in counted(steps, rank)} == {0}


@pytest.mark.all
def test_a_broken_spare_is_passed_over(
    lab: Lab, on_lab: Launcher, begin: Callable[..., Controller], steps: Path
) -> None:
    """It is said at the launch already; the next spare takes the place."""
    path = on_lab.conf / "cluster" / "lab4.yaml"
    cluster = yaml.safe_load(path.read_text())
    cluster["setup"] = ['[ "$(hostname)" != node3 ]']
    path.write_text(yaml.safe_dump(cluster, sort_keys=False))
    controller = begin("cluster.only=[node1,node2,node3,node4]", when=LOST)
    controller.until_printed("step 5", 2)
    assert "note: a spare node cannot be used as it is: node3: cluster.setup" in controller.err
    lab["node2"].power_off()
    done = controller.wait()
    assert done.code == 0, done
    assert "node3 cannot be used: cluster.setup ended with 1" in done.err, done
    assert nodes_of(steps, 1) == ["node1", "node4"]
    whole(steps)


def test_too_few_nodes_are_left(lab: Lab, begin: Callable[..., Controller]) -> None:
    """The end is the failure, and why nothing follows is said."""
    controller = begin(when=LOST, spare=False)
    controller.until_printed("step 5", 2)
    lab["node2"].power_off()
    done = controller.wait()
    assert done.code == 4, done
    assert "not relaunching: 2 nodes needed, 1 available (node1)" in done.err, done
    assert "relaunch:" not in done.err


@pytest.mark.all
def test_a_standstill_restarts_it(begin: Callable[..., Controller], steps: Path) -> None:
    """`watch.action=restart`: the nodes stay the same, nobody is suspect."""
    done = begin("watch.stall_s=5", "watch.action=restart", when=LOST).wait()
    assert done.code == 0, done
    whole(steps)
    assert nodes_of(steps, 1) == ["node1", "node2"]
    assert "attempt 2 of 3: no rank made progress for" in done.err, done


def test_the_verbs_know_the_attempts(
    begin: Callable[..., Controller], on_lab: Launcher, steps: Path
) -> None:
    """Of a run that always fails; from a folder without the record, on other nodes in the end."""
    when = ("fail=0:3:3", "wait=1:4", "wait=1:8:1", "fail=1:9:4:always")
    controller = begin(when=when)
    controller.until(
        lambda: any(attempt == 1 for _, attempt, _ in counted(steps, 0)), "the second attempt"
    )
    (steps / "go").touch()
    done = controller.wait()
    assert done.code == 1, done
    assert nodes_of(steps, 1) == ["node2", "node3"]  # node1 is suspect, and there is a spare
    assert "first failure: rank 1 on node" in done.err, done
    reasons = [str(each["reason"]) for each in past(done)]
    assert reasons[0] == "rank 0 on node1 exited with 3"
    assert reasons[1] == "rank 1 on node3 exited with 4"
    assert "after 2 relaunches:" in done.err
    assert "starting in 0.5 s" in done.err
    assert "starting in 1 s" in done.err
    assert done.result["exit_code"] == 1
    elsewhere = on_lab.at_another_machine("elsewhere")
    find = ("--cluster", "lab4", "--config-dir", str(on_lab.conf))

    def said(*words: str) -> Result:
        return elsewhere(*words, *find)

    listed = said("ps", "--all")
    (row,) = (line for line in listed.out.splitlines() if line.startswith(done.folder.name))
    assert " failed " in row, row
    assert row.endswith(" 3"), row  # the attempt, from 1
    why = said("why")
    assert why.out.count("rank 1 on node") == 2, why
    assert "after 2 relaunches:" in why.out
    logs = said("logs")
    assert "attempt 3, the last one" in logs.err, logs
    assert "attempt 2 from step" in logs.out
    assert "attempt 1 from step" not in logs.out
    pulled = said("pull", "--run", done.folder.name)
    assert pulled.code == 0, pulled
    home = elsewhere.folder / "runs" / done.folder.name / "logs"
    assert (home / "node1" / "rank_0.out").read_text().startswith("attempt 0 from step 0")
    assert list(home.glob("*/attempt_1/rank_0.out"))
    attached = said("attach", "--run", done.folder.name)
    assert attached.code == 1, attached
    assert ", attempt 3\n" in attached.err
    stopped = said("stop", "--run", done.folder.name, "--yes")
    assert stopped.code == 0, stopped
    assert "  node[1-3]  0 processes on each\n" in stopped.out, "the nodes of all attempts"
