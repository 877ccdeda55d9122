"""Fail-fast between the hosts: with a controller, and without one."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.inspecting import (
    events_by_node,
    guardian_and_supervisor,
    next_commands,
    proven_nodes,
)
from tests.lab.lab import Lab
from tests.lab.launching import PROGRAMS, Controller, Launcher
from tests.lab.waiting import wait_until, wait_until_idle

pytestmark = [pytest.mark.promise(2, 4)]

HUB_OR_MEMBER = ["node1", pytest.param("node3", marks=pytest.mark.all)]
"""The hub's host, or another; the pure tests of the hub have both sides of everything."""


@pytest.fixture
def begin(on_lab: Launcher) -> Callable[..., Controller]:
    """Start ranks that wait for a file before they do as told, and wait until all of them run."""

    def start(
        *words: str, overrides: tuple[str, ...] = (), entry: str = "plain", ranks: int = 4
    ) -> Controller:
        on_lab.entry = entry
        controller = on_lab.start(
            *("cluster=lab", "grace_s=1", *overrides),
            *on_lab.rank_overrides("print=up", *words, "sleep=600"),
        )
        controller.until_printed("] up", ranks)
        controller.until(
            lambda: joined(controller) == ranks - 1, "every supervisor to know the hub"
        )
        return controller

    return start


def joined(controller: Controller) -> int:
    """How many supervisors said that they are in touch with the hub."""
    path = controller.folder / "events.jsonl"
    return path.read_text().count('"kind":"hub_joined"') if path.exists() else 0


def test_the_first_failure_is_the_same_at_once_and_at_the_end(
    lab: Lab, begin: Callable[..., Controller], tmp_path: Path
) -> None:
    """Though the report of a later one is there before it."""
    words = ("fail=0:3", "sleep=0.7", "fail=1:4")
    controller = begin(f"wait={tmp_path}/go", *words, overrides=("task.nnodes=2",), ranks=2)
    # 0.15 s after the other one, of 0.5 s that the controller waits (FIRST_FAILURE_S).
    lab["node1"].degrade_network(delay_ms=850)
    (tmp_path / "go").touch()
    done = controller.wait(30)
    lab["node1"].restore_network()
    assert done.code == 1, done
    assert "\nrank 0 on node1 exited with 3; stopping the rest\n" in done.err
    assert "\nfirst failure: rank 0 on node1 exited with 3\n" in done.err


def test_tracebacks_that_follow_from_the_first_failure_are_folded(
    begin: Callable[..., Controller], on_lab: Launcher, tmp_path: Path
) -> None:
    """On the console: its own is whole there, and all of them are in the logs.

    So it is for an `attach` after the end.
    """
    words = ["raise=1:no_learning_rate", "sleep=0.3", "raise=0:Connection_closed_by_peer"]
    words = ["deaf", f"wait={tmp_path}/go", *words]  # the stop comes before rank 0 raises
    controller = begin(*words, overrides=("task.nnodes=2",), ranks=2)
    (tmp_path / "go").touch()
    done = controller.wait(30)
    assert done.code == 1, done
    assert "\n[node2:1] Traceback (most recent call last):\n" in done.err
    assert "\n[node2:1] RuntimeError: no learning rate\n" in done.err
    consequences = [line for line in done.err.splitlines() if line.startswith("[node1:0]")]
    (folded,) = consequences
    assert "lines of a traceback: RuntimeError: Connection closed by peer (whole in" in folded
    assert "Traceback" in done.log("node1", 0, "err")
    again = on_lab("attach", "--run", controller.run_id)
    assert (again.code, [line for line in again.err.splitlines() if "[node1:0]" in line]) == (
        1,
        consequences,
    )
    assert "\n[node2:1] RuntimeError: no learning rate\n" in again.err


@pytest.mark.parametrize("node", HUB_OR_MEMBER)
def test_a_failed_rank_ends_all_without_a_controller(
    lab: Lab, begin: Callable[..., Controller], node: str
) -> None:
    """On the hub's host or another: within 2 s, deaf ranks within their grace."""
    controller = begin("wait=/dev/shm/fail", "exit=3", entry="torchrun")
    controller.kill()
    began = time.monotonic()
    lab[node].sh("touch /dev/shm/fail")
    wait_until_idle(lab, 10)
    assert time.monotonic() - began < 5
    rank = int(node[-1]) - 1
    for name, record in events_by_node(lab, controller.run_id):
        stopping = [event for event in record if event["kind"] == "stopping"]
        assert stopping[0]["reason"] == f"rank {rank} on {node} exited with 3", name
        assert stopping[0]["cause"] == ("local" if name == node else "peer"), name
        assert record[-1]["kind"] == "ended", name


@pytest.mark.parametrize("node", HUB_OR_MEMBER)
@pytest.mark.parametrize("who", [pytest.param(0, marks=pytest.mark.all), 1])
def test_a_killed_guardian_or_supervisor_ends_all_without_a_controller(
    lab: Lab, begin: Callable[..., Controller], node: str, who: int
) -> None:
    """The guardian (0) or the supervisor (1) of the hub's host, or of another."""
    controller = begin("deaf")
    keeper = guardian_and_supervisor(lab, node)[who]
    controller.kill()
    lab[node].kill(keeper.pid)
    wait_until_idle(lab, 10)
    for name, record in events_by_node(lab, controller.run_id):
        assert record[-1]["kind"] == "ended", name


@pytest.mark.parametrize("node", HUB_OR_MEMBER)
def test_a_powered_off_host_ends_all_without_a_controller(
    lab: Lab, on_lab: Launcher, begin: Callable[..., Controller], node: str
) -> None:
    """Nobody says farewell: after `lost_s` the others end, name it, and `why` knows by them."""
    controller = begin(overrides=("lost_s=3",))
    controller.kill()
    lab[node].power_off()
    began = time.monotonic()
    left = [name for name in lab.hosts if name != node]
    wait_until(lambda: not any(lab[name].leftovers() for name in left), "the others' end", 15)
    assert time.monotonic() - began > 2
    for name, record in events_by_node(lab, controller.run_id):
        if name != node:
            assert f"lost {node}: nothing was heard" in str(record), name
    why = on_lab("why")
    assert why.code == 0, why
    assert f"first failure: {node}: nothing was heard from it for 3 s" in why.out
    assert f"{node}: could not verify that all processes ended" in why.out
    rerun, stop = (shlex.split(words) for words in reversed(next_commands(why.out)))
    assert stop[:3] == ["stop", "--run", controller.run_id]
    dry_run = on_lab(*rerun, "dry_run=true")
    assert dry_run.code == 0, dry_run
    assert " ".join(rerun[1:]) in dry_run.err
    assert node not in re.split("[^a-z0-9]+", dry_run.out)


def test_a_host_that_stalls_for_a_while_is_not_lost(
    lab: Lab, on_lab: Launcher, begin: Callable[..., Controller]
) -> None:
    """A supervisor that gets no CPU for less than `lost_s` ends nothing."""
    controller = begin(overrides=("lost_s=6",))
    for node in ("node1", "node3"):
        supervisor = guardian_and_supervisor(lab, node)[1]
        lab[node].kill(supervisor.pid, signal.SIGSTOP)
        time.sleep(2.5)
        lab[node].kill(supervisor.pid, signal.SIGCONT)
    time.sleep(1)
    assert "stopping" not in controller.err
    controller.send()
    assert controller.wait(30).code == 130


@pytest.mark.parametrize("node", HUB_OR_MEMBER)
def test_a_cable_that_is_out_for_less_than_lost_s_costs_nothing(
    lab: Lab, begin: Callable[..., Controller], node: str
) -> None:
    """TCP doubles its pauses after each lost packet; the hosts are in touch again before."""
    controller = begin(overrides=("lost_s=12", "cluster.ssh.connect_timeout=2"))
    lab[node].unplug()
    time.sleep(7)
    lab[node].plug()
    time.sleep(8)
    assert "stopping" not in controller.err, controller.err
    controller.send()
    done = controller.wait(30)
    assert done.code == 130, done
    assert proven_nodes(done.err) == 4


def test_a_user_stop_reaches_hosts_out_of_reach(lab: Lab, begin: Callable[..., Controller]) -> None:
    """The controller cannot reach one host; the others tell it."""
    controller = begin(overrides=("cluster.ssh.connect_timeout=1", "lost_s=4"))
    with lab.cut_off("node3"):
        controller.send()
        wait_until(lambda: not lab["node3"].processes("rank.py"), "the ranks' end on node3", 15)
    done = controller.wait(60)
    assert done.code == 130, done
    assert proven_nodes(done.err) == 4


def test_a_blocked_hub_is_said_and_the_controller_does_it(lab: Lab, on_lab: Launcher) -> None:
    """Its port takes connections and says nothing: a warning, and a failure still ends all."""
    blocked = lab["node1"].popen([sys.executable, str(PROGRAMS / "thief.py"), "1"])
    controller = on_lab.start(
        *("cluster=lab", "grace_s=1", "lost_s=3"),
        *on_lab.rank_overrides("print=up", "wait=/dev/shm/fail", "exit=3"),
    )
    controller.until_printed("] up", 4)
    controller.until(lambda: controller.err.count(" cannot reach node1 at ") == 3, "the warnings")
    assert joined(controller) == 0
    assert "only this process can stop" in controller.err
    lab["node3"].sh("touch /dev/shm/fail")
    done = controller.wait(30)
    blocked.kill()
    blocked.wait()
    assert done.code == 1, done
    assert "first failure: rank 2 on node3 exited with 3" in done.err
    assert proven_nodes(done.err) == 4
