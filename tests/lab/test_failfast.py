"""Fail-fast between the hosts: with a controller, and without one."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.core.wire.codec import decode
from runner.core.wire.states import Reason
from tests.golden.builders import failed
from tests.lab.inspecting import guardian_and_supervisor, next_commands, proven_nodes
from tests.lab.lab import Lab
from tests.lab.launching import PROGRAMS, Controller, Launcher
from tests.lab.waiting import wait_until_ended, wait_until_idle

pytestmark = [pytest.mark.promise(2, 4)]

BOTH = ("node1", "node2")


@pytest.fixture
def begin(on_lab: Launcher) -> Callable[..., Controller]:
    def start(*words: str, overrides: tuple[str, ...] = (), entry: str = "plain") -> Controller:
        on_lab.entry = entry
        ranks = on_lab.rank_overrides("print=up", *words, "sleep=600")
        controller = on_lab.start("cluster=lab", "grace_s=1", *overrides, *ranks)
        controller.until_printed("] up", 2)
        controller.until_joined()
        return controller

    return start


def test_tracebacks_that_follow_from_the_first_failure_are_folded(
    begin: Callable[..., Controller], on_lab: Launcher, tmp_path: Path
) -> None:
    """On the console: its own is whole there, and all of them are in the logs.

    So it is for an `attach` after the end.
    """
    words = [
        "raise=1:no_learning_rate",
        "sleep=0.3",
        "raise=0:[gloo/transport/tcp/pair.cc:553]_Connection_closed_by_peer",
    ]
    words = ["deaf", f"wait={tmp_path}/go", *words]  # the stop comes before rank 0 raises
    controller = begin(*words)
    (tmp_path / "go").touch()
    done = controller.wait()
    assert done.code == 1, done
    assert "\n[node2:1] Traceback (most recent call last):\n" in done.err
    assert "\n[node2:1] RuntimeError: no learning rate\n" in done.err
    assert done.err.count("Traceback") == 2, "the report quotes it"
    assert "\n  | RuntimeError: no learning rate\n" in done.err
    consequences = [line for line in done.err.splitlines() if line.startswith("[node1:0]")]
    (folded,) = consequences
    assert "traceback (in logs): RuntimeError: Connection closed by peer" in folded
    assert "Traceback" in done.log("node1", 0, "err")
    again = on_lab("attach", "--run", controller.run_id)
    assert (again.code, [line for line in again.err.splitlines() if "[node1:0]" in line]) == (
        1,
        consequences,
    )
    assert "\n[node2:1] RuntimeError: no learning rate\n" in again.err


def test_a_failed_rank_ends_all_without_a_controller(
    lab: Lab, begin: Callable[..., Controller]
) -> None:
    """The other ranks are told to end at once."""
    controller = begin("wait=/dev/shm/fail", "exit=3", overrides=("grace_s=900",), entry="torchrun")
    controller.kill()
    lab["node2"].sh("touch /dev/shm/fail")
    for name, record in wait_until_ended(lab, controller.run_id, BOTH):
        stopping = [event for event in record if event["kind"] == "stopping"]
        reason = decode(Reason, stopping[0]["reason"])
        assert reason == failed("node2", 1, 3), name
        assert record[-1]["kind"] == "ended", name


def test_a_killed_supervisor_ends_all_without_a_controller(
    lab: Lab, begin: Callable[..., Controller]
) -> None:
    """That of the hub, whose guardian tells nobody."""
    controller = begin("deaf")
    _, supervisor = guardian_and_supervisor(lab, "node1")
    controller.kill()
    lab["node1"].kill(supervisor.pid)
    for _ in wait_until_ended(lab, controller.run_id, BOTH):
        wait_until_idle(lab)


@pytest.mark.slow
def test_a_powered_off_host_ends_all_without_a_controller(
    lab: Lab, on_lab: Launcher, begin: Callable[..., Controller]
) -> None:
    """Nobody says farewell: after `lost_s` the other ends, names it, and `why` knows by it."""
    controller = begin()
    controller.kill()
    lab["node2"].power_off()
    ((_, record),) = wait_until_ended(lab, controller.run_id, ["node1"])
    assert "'kind': 'lost', 'node': 'node2'" in str(record)
    why = on_lab.succeed("why")
    assert "first failure: lost node2: nothing was heard from it for 1" in why.out
    assert "node2: could not verify that all processes ended" in why.out
    rerun, stop = (shlex.split(words) for words in reversed(next_commands(why.out)))
    assert stop[:3] == ["stop", "--run", controller.run_id]
    dry_run = on_lab.succeed(*rerun, "dry_run=true")
    assert " ".join(rerun[1:]) in dry_run.err
    assert "node2" not in re.split("[^a-z0-9]+", dry_run.out)


@pytest.mark.slow
def test_a_blocked_hub_is_said_and_the_controller_does_it(lab: Lab, on_lab: Launcher) -> None:
    """Its port takes connections and says nothing: a warning, and a failure still ends all."""
    blocked = lab["node1"].popen([sys.executable, str(PROGRAMS / "thief.py")])
    controller = on_lab.start(
        *("cluster=lab", "grace_s=1"),
        *on_lab.rank_overrides("print=up", "wait=/dev/shm/fail", "exit=3"),
    )
    controller.until_printed("] up", 2)
    controller.until(lambda: " cannot reach node1 at " in controller.err, "the warning")
    assert controller.joined == 0
    assert "only this process can stop" in controller.err
    lab["node2"].sh("touch /dev/shm/fail")
    done = controller.wait()
    blocked.kill()
    blocked.wait()
    assert done.code == 1, done
    assert "first failure: rank 1 on node2 exited with 3" in done.err
    assert proven_nodes(done.err) == 2
