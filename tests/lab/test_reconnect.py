"""Lost connections: ranks train on, the controller finds them again, no byte is lost or doubled.

A killed controller, a closed terminal and a pulled cable are the same case, and three tests.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from runner.core.wire.codec import decode
from runner.core.wire.states import Reason, ReasonKind
from tests.lab.inspecting import agent_of
from tests.lab.lab import Lab
from tests.lab.launching import PROGRAMS, Controller, Launcher
from tests.lab.waiting import PATIENCE, wait_until_ended, wait_until_idle

pytestmark = [pytest.mark.promise(1, 6)]

LINES = 2000
BOTH = ("node1", "node2")


@pytest.fixture
def begin(on_lab: Launcher) -> Callable[..., Controller]:
    """Start ranks that print numbered lines for some seconds, and then wait until `let_go`.

    They print when this returns, and the hosts are in touch.
    """

    def start(*overrides: str, words: tuple[str, ...] = ()) -> Controller:
        lines = f"count={LINES}/0.003"
        ranks = on_lab.rank_overrides("print=up", *words, lines, "wait=/dev/shm/go", "print=done")
        controller = on_lab.start("cluster=lab", "grace_s=2", *overrides, *ranks)
        controller.until_printed("] up", 2)
        controller.until(lambda: "every rank started" in controller.err, "the controller to see it")
        happened = controller.folder / "events.jsonl"
        controller.until(lambda: '"kind":"hub_joined"' in happened.read_text(), "the hub")
        return controller

    return start


def let_go(lab: Lab) -> None:
    for node in BOTH:
        lab[node].sh("touch /dev/shm/go")


def whole(controller: Controller) -> None:
    """Check that every line of every rank came once, in order, on the console and in the files."""
    wanted = [f"line {number}" for number in range(LINES)]
    for rank, node in enumerate(BOTH):
        prefix = f"[{node}:{rank}] "
        shown = [
            line[len(prefix) :]
            for line in controller.out.splitlines()
            if line.startswith(f"{prefix}line ")
        ]
        assert shown == wanted, (rank, len(shown))
        path = controller.folder / "logs" / node / f"rank_{rank}.out"
        kept = [line for line in path.read_text().splitlines() if line.startswith("line ")]
        assert kept == wanted, (rank, len(kept))


def test_a_killed_agent_is_replaced(lab: Lab, begin: Callable[..., Controller]) -> None:
    """Again and again: the run does not notice, and every byte arrives once."""
    controller = begin()
    for number in range(3):
        for node in BOTH:
            lab[node].kill(agent_of(lab, node).pid)
        controller.until(
            lambda n=number: controller.err.count("connected again") >= 2 * (n + 1),  # type: ignore[misc]
            "both agents again",
        )
    let_go(lab)
    done = controller.wait()
    assert done.code == 0, done
    assert "node2: the connection to it broke" in done.err
    whole(controller)


@pytest.mark.slow
@pytest.mark.over_openssh
def test_a_host_out_of_reach_of_the_controller_alone(
    lab: Lab, begin: Callable[..., Controller]
) -> None:
    """For longer than `lost_s`: nothing is stopped while the hosts reach each other.

    The logs come when they are in reach again.
    """
    controller = begin()
    with lab.cut_off("node2"):
        controller.until(lambda: "; reconnecting" in controller.err, "silence")
        time.sleep(12)  # since 5 s of silence
        assert "stopping" not in controller.err
        let_go(lab)
        for _, record in wait_until_ended(lab, controller.run_id, ["node2"]):
            assert record[-1]["state"] == "succeeded"
    done = controller.wait()
    assert done.code == 0, done
    assert done.err.count("connected again") == 1
    whole(controller)
    lab.kill_all()  # the agents of the silent connections wait for a minute


@pytest.mark.slow
def test_without_a_controller_a_run_goes_on_for_a_while(
    lab: Lab, begin: Callable[..., Controller]
) -> None:
    """After `disconnect_s` the hosts stop it, each by itself."""
    controller = begin("disconnect_s=12", words=("daemon", "deaf"))
    controller.kill()
    assert all(lab[node].processes("rank.py") for node in BOTH)
    for node, record in wait_until_ended(lab, controller.run_id, BOTH):
        stopping = next(event for event in record if event["kind"] == "stopping")
        reason = decode(Reason, stopping["reason"])
        assert (reason.kind, reason.detail) == (ReasonKind.UNATTENDED, "12 s"), node
    wait_until_idle(lab)


def test_a_run_outlives_its_terminal(lab: Lab, begin: Callable[..., Controller]) -> None:
    """By default, and the launch has said so, with how to find it."""
    controller = begin()
    attach = f"python -m runner attach --run {controller.run_id}"
    line = f"  Ctrl-C stops it, closing the terminal does not: {attach}\n"
    assert line in controller.err, controller.err
    controller.send(signal.SIGHUP)
    assert controller.process.wait(10 * PATIENCE) == 128 + signal.SIGHUP
    let_go(lab)
    for _, record in wait_until_ended(lab, controller.run_id, BOTH):
        assert record[-1]["state"] == "succeeded"


def test_a_fault_of_the_controller_ends_no_run(on_lab: Launcher, tmp_path: Path) -> None:
    """One line says so, that the run goes on, and the command that follows it to its end."""
    gate = tmp_path / "gate"
    ranks = on_lab.rank_overrides("print=up", f"wait={gate}", "print=done")
    argv = [sys.executable, str(PROGRAMS / "faulty_controller.py"), "rank"]
    words = ["cluster=lab", "run_id=faulty", *ranks]
    with closing(Controller([*argv, *words], on_lab.folder, on_lab.env)) as controller:
        done = controller.wait()
    assert done.code == 70, done
    assert "Traceback" not in done.err
    assert (
        "error: a fault of the runner itself (KeyError: 'a bug'); "
        "its traceback is in runs/faulty/crash.txt\n"
        "    run faulty goes on without this terminal\n"
    ) in done.err
    crash = (on_lab.folder / "runs/faulty/crash.txt").read_text()
    assert crash.startswith("runner ")
    assert crash.rstrip().endswith("KeyError: 'a bug'")
    attach = [line for line in done.err.splitlines() if " runner attach" in line][-1]

    words = shlex.split(attach)[1:]
    with closing(Controller([*argv, *words], on_lab.folder, on_lab.env)) as controller:
        again = controller.wait()
    assert again.code == 70, again
    assert f"this ends no run; to go on: {attach.strip()}" in again.err

    followed = on_lab.start(*shlex.split(attach)[1:])
    followed.until_printed("] up", 2)
    gate.touch()
    assert followed.wait().code == 0
    result = json.loads((on_lab.folder / "runs/faulty/result.json").read_text())
    assert result["exit_code"] == 0


@pytest.mark.all
def test_a_fault_after_the_end_leaves_a_record_to_complete(on_lab: Launcher) -> None:
    """The command that does so is printed."""
    argv = [sys.executable, str(PROGRAMS / "faulty_controller.py"), "end"]
    words = ["cluster=local", "cluster.nproc_per_node=1", *on_lab.rank_overrides("print=up")]
    with closing(Controller([*argv, *words], on_lab.folder, on_lab.env)) as controller:
        done = controller.wait()
    notice = "its attempt had ended; to complete the record: "
    assert (done.code, notice in done.err) == (70, True), done
    printed = shlex.split(done.err.partition(notice)[2])
    completed = on_lab(*printed[printed.index("attach") :])
    assert (completed.code, done.result["exit_code"]) == (0, 0), completed
