"""Relaunch of a detached run by its hosts, on the nodes that are left."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.inspecting import events_by_node
from tests.lab.lab import Lab
from tests.lab.launching import PROGRAMS, Launcher
from tests.lab.waiting import wait_until, wait_until_idle

STEPS = 12


@pytest.fixture
def detached(on_lab: Launcher, steps: Path) -> Callable[..., tuple[str, str]]:
    """Start a detached run of ranks that count; return its id, and what its launch said."""

    def start(
        *words: str,
        overrides: tuple[str, ...] = (),
        count: int = STEPS,
        entry: str = "plain",
        step_s: str = "0.5/0.1",
    ) -> tuple[str, str]:
        arguments = [str(steps), str(count), step_s, *words]
        done = on_lab(
            *("cluster=lab", "detach=true", "grace_s=1"),
            *("relaunch.max=2", "relaunch.backoff_s=0.5", "task.nnodes=3"),
            *(f"task.script={PROGRAMS / 'steps.py'}", f"task.entry={entry}"),
            "task.args_style=raw",
            *(f"task.args={json.dumps(arguments)}", *overrides),
        )
        assert done.code == 0, done
        return done.folder.name, done.err

    return start


def counted(steps: Path, rank: int) -> list[list[str]]:
    """What a rank has counted: the step, the attempt, the node."""
    path = steps / f"rank_{rank}"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def kinds(lab: Lab, run_id: str, node: str) -> list[str]:
    """What happened on a node."""
    record = dict(events_by_node(lab, run_id))[node]
    return [f"{event['attempt']}:{event['kind']}" for event in record]


def whole(steps: Path, count: int = STEPS) -> None:
    """Check that no rank has skipped or repeated a step."""
    for rank in range(3):
        done = [int(line[0]) for line in counted(steps, rank)]
        assert done == list(range(count)), (rank, done)


@pytest.mark.parametrize("rendezvous", ["static", pytest.param("c10d", marks=pytest.mark.all)])
def test_the_hub_is_powered_off_and_the_run_goes_on_on_the_spare(
    *,
    lab: Lab,
    on_lab: Launcher,
    detached: Callable[..., tuple[str, str]],
    steps: Path,
    rendezvous: str,
) -> None:
    """No controller is there: the second node leads, the spare takes part, and all is counted."""
    overrides = ("lost_s=4", f"rendezvous={rendezvous}")
    entry = "torchrun" if rendezvous == "c10d" else "plain"
    run_id, said = detached(count=40, overrides=overrides, entry=entry, step_s="0.5/0.25")
    assert "the hosts relaunch it (1 spare standing by)" in said, said
    wait_until(lambda: len(counted(steps, 2)) > 1, "the first steps", 30)
    lab["node1"].power_off()
    wait_until(lambda: counted(steps, 2) and counted(steps, 2)[-1][2] == "node4", "the spare", 60)
    soon = "cluster.ssh.connect_timeout=2"
    listed = on_lab("ps", "--all", "--cluster", "lab", soon)
    assert re.search(rf"^{run_id} .*running", listed.out, re.MULTILINE), listed
    attached = on_lab("attach", "--run", run_id, "--cluster", "lab", soon, seconds=60)
    assert attached.code == 0, attached
    assert "attempt_1" in str([*attached.folder.parent.glob("*/logs/*/*")]), attached
    left = [name for name in lab.hosts if name != "node1"]
    wait_until(lambda: not any(lab[name].leftovers() for name in left), "the end", 30)
    whole(steps, 40)
    assert {line[2] for line in counted(steps, 0)} == {"node1", "node2"}
    for node in ("node2", "node3"):
        assert "0:relaunching" in kinds(lab, run_id, node)
    assert "succeeded" in on_lab("ps", "--all", "--cluster", "lab", soon).out


def test_an_elastic_run_that_lost_its_store_starts_again(
    lab: Lab, detached: Callable[..., tuple[str, str]], steps: Path
) -> None:
    """torch goes on without other nodes, but not without the store's: that takes a new attempt."""
    elastic = ("rendezvous=c10d", "task.nnodes=2:3", "torchrun.max_restarts=3", "lost_s=4")
    run_id, _ = detached(count=40, overrides=elastic, entry="torchrun")
    wait_until(lambda: len(counted(steps, 2)) > 1, "the first steps", 30)
    lab["node1"].power_off()
    wait_until(
        lambda: counted(steps, 1) and counted(steps, 1)[-1][1] == "1", "the next attempt", 60
    )
    left = [lab[name] for name in lab.hosts if name != "node1"]
    wait_until(lambda: not any(host.leftovers() for host in left), "the end", 60)
    whole(steps, 40)
    assert "node1" not in {line[2] for rank in range(3) for line in counted(steps, rank)[-5:]}
    assert "0:relaunching" in kinds(lab, run_id, "node2")


@pytest.mark.all
def test_a_rank_that_fails_once(
    lab: Lab, detached: Callable[..., tuple[str, str]], steps: Path
) -> None:
    """Its node is left out for the spare; the attempt after that ends well."""
    run_id, _ = detached("fail=1:8:7")
    wait_until(lambda: not lab.leftovers() and len(counted(steps, 1)) == STEPS, "the end", 60)
    whole(steps)
    assert counted(steps, 1)[-1][2] == "node3", list(events_by_node(lab, run_id))
    assert "0:relaunching" in kinds(lab, run_id, "node1")
    record = dict(events_by_node(lab, run_id))
    assert record["node4"][-1]["state"] == record["node2"][-1]["state"] == "succeeded"


@pytest.mark.all  # two more failures of the kind above
def test_a_run_that_fails_again_needs_nobody_either(
    lab: Lab, detached: Callable[..., tuple[str, str]], steps: Path
) -> None:
    """The hosts' own attempts outlive `disconnect_s`, and are followed by another as the first."""
    run_id, _ = detached(
        "fail=1:6:7", "fail=2:22:9:1", overrides=("disconnect_s=5",), count=36, step_s="0.5"
    )
    wait_until(lambda: not lab.leftovers() and len(counted(steps, 1)) == 36, "the end", 90)
    whole(steps, 36)
    attempts = [line[1] for line in counted(steps, 2)]
    first = attempts.count("0")
    assert 0 < first < 12, attempts
    assert attempts == ["0"] * first + ["1"] * (22 - first) + ["2"] * 14
    assert {"0:relaunching", "1:relaunching"} < {*kinds(lab, run_id, "node1")}
    assert dict(events_by_node(lab, run_id))["node1"][-1]["state"] == "succeeded"


@pytest.mark.all
def test_a_rank_that_fails_at_once(
    lab: Lab, detached: Callable[..., tuple[str, str]], steps: Path
) -> None:
    """Whoever decides, the launch mostly: the spare that stood by gives way to its next part."""
    _, said = detached("fail=1:0:7", overrides=("relaunch.backoff_s=0.1",))
    wait_until(lambda: all(len(counted(steps, rank)) == STEPS for rank in range(3)), "the end", 60)
    whole(steps)
    assert [counted(steps, rank)[-1][1:] for rank in range(3)] == [
        *(["1", "node1"], ["1", "node3"], ["1", "node4"])
    ], said
    wait_until_idle(lab)


def test_without_a_majority_nothing_starts_again(
    lab: Lab, detached: Callable[..., tuple[str, str]], steps: Path
) -> None:
    """Two of four are in touch with nobody else: neither half goes on."""
    run_id, _ = detached(count=200, overrides=("lost_s=4",))
    wait_until(lambda: len(counted(steps, 2)) > 1, "the first steps", 30)
    for name in ("node3", "node4"):
        lab[name].unplug()
    wait_until_idle(lab, 60)
    for name in ("node3", "node4"):
        lab[name].plug()
    for node in lab.hosts:
        assert "0:relaunching" not in kinds(lab, run_id, node), node
    assert "0:not_relaunched" in kinds(lab, run_id, "node1")


def test_a_stop_during_the_pause_leaves_nothing(
    lab: Lab, on_lab: Launcher, detached: Callable[..., tuple[str, str]], steps: Path
) -> None:
    """The hosts wait before they start it again; a stop ends that, and is proven."""
    run_id, _ = detached("fail=1:1:7", overrides=("relaunch.backoff_s=60",))
    wait_until(lambda: "0:relaunch_pending" in kinds(lab, run_id, "node3"), "the pause", 30)
    time.sleep(1)
    stopped = on_lab("stop", "--run", run_id, "--cluster", "lab", seconds=40)
    assert stopped.code in (0, 1), stopped
    assert "no process is left" in stopped.out, stopped
    wait_until_idle(lab, 15)
    assert not any("1:" in str(kinds(lab, run_id, node)) for node in lab.hosts)
    assert len(counted(steps, 1)) == 1


def test_who_attached_before_follows_into_the_next_attempt(
    lab: Lab, on_lab: Launcher, detached: Callable[..., tuple[str, str]], steps: Path
) -> None:
    """Its console says what the hosts decide, and its exit code is that of the last attempt.

    The host that takes no part any more does not know whether it has ended.
    """
    run_id, _ = detached("fail=1:14:7", count=80)
    attaching = on_lab.start("attach", "--run", run_id, "--cluster", "lab")
    wait_until(lambda: counted(steps, 2) and counted(steps, 2)[-1][1] == "1", "the next", 60)
    why = on_lab("why", "--run", run_id, "--cluster", "lab", "cluster.only=[node2]")
    assert (why.code, "has not ended, as far as the hosts say" in why.err) == (3, True), why
    attached = attaching.wait(80)
    assert attached.code == 0, attached
    assert "rank 1 on node2 exited with 7" in attached.err, attached
    assert "the hosts relaunch the run: attempt 2, on node[1,3-4]" in attached.err
    assert attached.out.count("] step 79") == 3, attached
    whole(steps, 80)
    wait_until_idle(lab)


@pytest.mark.all
def test_a_node_alone_starts_again(
    lab: Lab, detached: Callable[..., tuple[str, str]], steps: Path
) -> None:
    """There is nobody to ask, and no port is needed."""
    alone = ("cluster.only=[node2]", "task.nnodes=1")
    run_id, said = detached("fail=0:8:7", overrides=alone)
    assert "if it fails, its host relaunches it" in said, said
    wait_until(lambda: len(counted(steps, 0)) == STEPS, "the end", 40)
    assert [line[1] for line in counted(steps, 0)] == ["0"] * 8 + ["1"] * 4
    wait_until_idle(lab)
    assert dict(events_by_node(lab, run_id))["node2"][-1]["state"] == "succeeded"


def test_without_a_port_for_the_hub_that_is_said(
    lab: Lab, on_lab: Launcher, detached: Callable[..., tuple[str, str]], steps: Path
) -> None:
    """A hub that nobody reaches: the launch says at its leave that nothing follows a failure."""
    blocked = lab["node1"].popen([sys.executable, str(PROGRAMS / "thief.py"), "1"])
    run_id, said = detached("fail=1:24:7", count=32)
    assert "it is not relaunched" in said, said
    wait_until(lambda: len(counted(steps, 0)) == 32, "the end", 60)
    assert len(counted(steps, 1)) == 24
    on_lab("stop", "--run", run_id, "--cluster", "lab")
    assert not any("relaunch_pending" in str(kinds(lab, run_id, node)) for node in lab.hosts)
    blocked.kill()
    blocked.wait()
