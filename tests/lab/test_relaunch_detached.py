"""Relaunch of a run by its hosts, on the nodes that are left: no launch is there any more."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.counting import LOST, STEPS, counted, start_counting, whole
from tests.lab.inspecting import events_by_node
from tests.lab.lab import Lab
from tests.lab.launching import Controller, Launcher
from tests.lab.waiting import wait_until, wait_until_idle


@pytest.fixture
def begin(on_lab: Launcher, steps: Path) -> Callable[..., Controller]:
    """Start a run of two ranks that count, with node3 as a spare."""

    def start(*when: str, overrides: tuple[str, ...] = ()) -> Controller:
        return start_counting(on_lab, steps, "0.5/0.1", when, overrides)

    return start


@pytest.fixture
def detached(begin: Callable[..., Controller]) -> Callable[..., tuple[str, str]]:
    """Start such a run detached; its id, and what its launch said."""

    def start(*words: str, overrides: tuple[str, ...] = ()) -> tuple[str, str]:
        done = begin(*words, overrides=(*overrides, "detach=true")).wait()
        assert done.code == 0, done
        return done.folder.name, done.err

    return start


def until_counted(steps: Path, rank: int, attempt: int) -> None:
    def has() -> bool:
        return any(line[1] == attempt for line in counted(steps, rank))

    wait_until(has, f"rank {rank} in attempt {attempt}", 60)


def kinds(lab: Lab, run_id: str, node: str) -> list[str]:
    record = dict(events_by_node(lab, run_id, [node]))[node]
    return [f"{event['attempt']}:{event['kind']}" for event in record]


def test_a_rank_that_fails_once(
    lab: Lab, on_lab: Launcher, detached: Callable[..., tuple[str, str]], steps: Path
) -> None:
    """Its node is left out for the spare; who attached before follows into the next attempt.

    The console says what the hosts decide, and its exit code is that of the last attempt.
    """
    run_id, said = detached("wait=1:8", "fail=1:8:7")
    assert "the hosts relaunch it (1 spare standing by)" in said, said
    attaching = on_lab.start("attach", "--run", run_id, "--cluster", "lab4")
    attaching.until_printed("step 7", 2)
    (steps / "go").touch()
    attached = attaching.wait()
    assert attached.code == 0, attached
    assert "rank 1 on node2 exited with 7" in attached.err, attached
    assert "the hosts relaunch the run: attempt 2, on node[1,3]" in attached.err
    assert attached.out.count(f"] step {STEPS - 1}") == 2, attached
    wait_until_idle(lab)
    whole(steps)
    assert counted(steps, 1)[-1][2] == "node3"
    assert "attempt_1" in str([*attached.folder.parent.glob("*/logs/*/*")]), attached
    assert "0:relaunching" in kinds(lab, run_id, "node1")
    listed = on_lab("ps", "--all", "--cluster", "lab4")
    assert re.search(rf"^{run_id} .*succeeded", listed.out, re.MULTILINE), listed


@pytest.mark.slow
@pytest.mark.parametrize("disconnect_s", ["never", pytest.param("600", marks=pytest.mark.all)])
def test_a_run_whose_launch_was_killed_starts_again_and_tells(
    lab: Lab, begin: Callable[..., Controller], steps: Path, disconnect_s: str
) -> None:
    """Nobody had detached it; the spare stood by all the same, whatever `disconnect_s` is."""
    target = f"notify=['cat > $(mktemp {steps}/told.XXXXXX)']"
    launch = begin(*LOST, overrides=(target, f"disconnect_s={disconnect_s}"))
    launch.until_printed("step 7", 2)
    launch.kill()
    lab["node2"].power_off()
    until_counted(steps, 1, 1)
    wait_until(lambda: not any(lab[n].leftovers() for n in ("node1", "node3")), "the end")
    whole(steps)
    assert counted(steps, 1)[-1][2] == "node3"
    messages = [json.loads(path.read_text()) for path in steps.glob("told.*")]
    told = sorted((message["event"], message["told_by"]) for message in messages)
    assert told == [("end", "node1")]


def test_a_launch_that_comes_back_follows_its_hosts(
    lab: Lab, begin: Callable[..., Controller], steps: Path
) -> None:
    """It was suspended for too long: the hosts have relaunched the run, and it sees that end."""
    launch = begin("wait=1:8", "fail=1:8:7")
    launch.until_printed("step 7", 2)
    launch.send(signal.SIGSTOP)
    (steps / "go").touch()
    until_counted(steps, 1, 1)
    launch.send(signal.SIGCONT)
    done = launch.wait()
    assert done.code == 0, done
    assert "the hosts relaunch the run: attempt 2" in done.err, done
    assert done.out.count(f"] step {STEPS - 1}") == 2, done
    assert done.result["state"] == "succeeded"
    wait_until_idle(lab)
    whole(steps)


@pytest.mark.slow
def test_a_lost_hub_is_the_end(
    lab: Lab, detached: Callable[..., tuple[str, str]], steps: Path
) -> None:
    """It would decide about a relaunch; the others end their part, and say so."""
    run_id, said = detached(*LOST)
    assert "unless node1 is lost" in said, said
    until_counted(steps, 1, 0)
    lab["node1"].power_off()
    wait_until(lambda: not any(lab[n].leftovers() for n in ("node2", "node3")), "the end")
    for node in ("node2", "node3"):
        record = str(dict(events_by_node(lab, run_id, [node]))[node])
        assert "'reason': {'kind': 'lost', 'node': 'node1'" in record, record
        assert "its hub, which would decide about it, was lost" in record, record


@pytest.mark.slow
def test_with_too_few_nodes_nothing_starts_again(
    lab: Lab, detached: Callable[..., tuple[str, str]], steps: Path
) -> None:
    """One of three is in touch with nobody, neither are the others: nobody goes on."""
    run_id, _ = detached(*LOST)
    until_counted(steps, 1, 0)
    for name in ("node2", "node3"):
        lab[name].unplug()
    wait_until_idle(lab, 60)
    for name in ("node2", "node3"):
        lab[name].plug()
    for node in ("node1", "node2", "node3"):
        assert "0:relaunching" not in kinds(lab, run_id, node), node
    assert "0:not_relaunched" in kinds(lab, run_id, "node1")


def test_a_stop_during_the_pause_leaves_nothing(
    lab: Lab, on_lab: Launcher, detached: Callable[..., tuple[str, str]], steps: Path
) -> None:
    """The hosts wait before they start it again; a stop ends that, and is proven."""
    run_id, _ = detached("fail=1:1:7", overrides=("relaunch.backoff_s=300",))
    wait_until(lambda: "0:relaunch_pending" in kinds(lab, run_id, "node1"), "the pause", 30)
    stopped = on_lab("stop", "--run", run_id, "--cluster", "lab4")
    assert stopped.code == 0, stopped
    assert "no process is left" in stopped.out, stopped
    wait_until_idle(lab)
    assert not any("1:" in str(kinds(lab, run_id, node)) for node in ("node1", "node2", "node3"))
    assert len(counted(steps, 1)) == 1


@pytest.mark.all
def test_a_node_alone_starts_again(
    lab: Lab, detached: Callable[..., tuple[str, str]], steps: Path
) -> None:
    """There is nobody to ask, and no port is needed."""
    _, said = detached("fail=0:8:7", overrides=("cluster.only=[node2]", "task.nnodes=1"))
    assert "if it fails, its host relaunches it" in said, said
    wait_until(lambda: len(counted(steps, 0)) == STEPS, "the end", 40)
    assert [line[1] for line in counted(steps, 0)] == [0] * 8 + [1] * (STEPS - 8)
    wait_until_idle(lab)
