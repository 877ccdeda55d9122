"""Ends of every kind, on real hosts: each as designed, with nothing left anywhere.

The shared lab's own fixture looks at every host after each test and fails it if anything of the
run is still there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from runner.core.wire.codec import encode
from tests.golden.builders import failed
from tests.lab.inspecting import proven_nodes
from tests.lab.lab import Lab
from tests.lab.lab.processes import Process
from tests.lab.launching import PROGRAMS, RANK_SCRIPT, Controller, Launcher, program
from tests.lab.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.promise(2)]

GRACE = "grace_s=2"


@pytest.fixture
def begin(on_lab: Launcher) -> Callable[..., Controller]:
    """Start ranks that do as told and then sleep, and wait until both of them run."""

    def start(*words: str, overrides: tuple[str, ...] = (), entry: str = "plain") -> Controller:
        on_lab.entry = entry
        ranks = on_lab.rank_overrides(*words, "print=up", "sleep=600")
        controller = on_lab.start("cluster=lab", GRACE, *overrides, *ranks)
        controller.until_printed("] up", 2)
        return controller

    return start


def find(lab: Lab, node: str, start: str) -> Process:
    found = [each for each in lab[node].processes() if each.cmdline.startswith(start)]
    assert found, (start, lab[node].processes())
    return min(found, key=lambda process: process.pid)


@pytest.mark.over_openssh
def test_ctrl_c_ends_deaf_ranks_and_their_daemons(
    lab: Lab, begin: Callable[..., Controller]
) -> None:
    """Ranks that ignore INT and TERM, with a deaf child in its own session: gone, and proven."""
    controller = begin("daemon", "deaf", entry="torchrun")
    controller.send(signal.SIGINT)
    done = controller.wait()
    assert done.code == 130, done
    assert lab.wait_idle() == {}
    assert proven_nodes(done.err) == 2
    assert "stopped" in done.err


@pytest.mark.parametrize("entry", ["torchrun", "command", "preload", "plain"])
def test_a_rank_saves_before_its_workers_are_told(on_lab: Launcher, entry: str) -> None:
    """TERM is for the rank alone: its DataLoader serves it until it has ended."""
    words = program("saving.py")
    if entry == "command":
        words = [f"task.command={[sys.executable, str(PROGRAMS / 'saving.py')]}"]
    more = {"plain": ["task.entry=plain"], "preload": ["task.preload=true"]}.get(entry, [])
    controller = on_lab.start("cluster=lab", "grace_s=60", *words, *more)
    controller.until_printed("] training", 2)
    controller.send()
    done = controller.wait()
    assert done.code == 130, done
    for rank, node in enumerate(("node1", "node2")):
        assert f"rank {rank} SAVED" in done.log(node, rank), done
    assert proven_nodes(done.err) == 2


def test_a_second_ctrl_c_hurries(lab: Lab, begin: Callable[..., Controller]) -> None:
    """It skips the grace, and still proves the end."""
    controller = begin("daemon", "deaf", overrides=("grace_s=900",))
    controller.send()
    controller.until(lambda: "stopping" in controller.err, "the first word")
    controller.send()
    done = controller.wait()
    assert done.code == 130, done
    assert proven_nodes(done.err) == 2
    assert lab.wait_idle() == {}


@pytest.mark.promise(12)
def test_stopping_one_run_leaves_another_alone(
    lab: Lab, on_lab: Launcher, begin: Callable[..., Controller]
) -> None:
    """Two runs side by side on the same hosts; SIGTERM ends one as Ctrl-C does."""
    hosts = [lab["node1"], lab["node2"]]
    first = begin("daemon", "deaf")
    words = ("touch=/dev/shm/second", "wait=/dev/shm/go", "print=done")
    second = on_lab.start("cluster=lab", *on_lab.rank_overrides(*words))
    for host in hosts:
        second.until(lambda host=host: host.sh("ls /dev/shm/second", check=False), "the second")  # type: ignore[misc]
    first.send(signal.SIGTERM)
    assert first.wait().code == 143
    for host in hosts:
        host.sh("touch /dev/shm/go")
    done = second.wait()
    assert done.code == 0, done
    assert done.out.count("] done") == 2


@pytest.mark.all
@pytest.mark.parametrize(
    ("victim", "named"),
    [("-P -m torch.distributed.run", "node2: torchrun"), (f"-u {RANK_SCRIPT}", "rank 1 on node2")],
    ids=["torchrun", "rank"],
)
def test_whoever_is_killed_is_the_first_failure(
    lab: Lab, begin: Callable[..., Controller], victim: str, named: str
) -> None:
    """With the signal in words, and nothing is left."""
    controller = begin("daemon", "deaf", entry="torchrun")
    lab["node2"].kill(find(lab, "node2", f"{sys.executable} {victim}").pid)
    done = controller.wait()
    assert done.code == 1, done
    assert f"first failure: {named} was killed by SIGKILL" in done.err
    assert lab.wait_idle() == {}


def test_one_failing_rank_stops_everybody(lab: Lab, on_lab: Launcher) -> None:
    """Ranks that do not talk to the failed one are stopped too, at once."""
    words = on_lab.rank_overrides("err=the reason", "fail=1:3", "sleep=600")
    done = on_lab("cluster=lab", *words)
    assert done.code == 1, done
    assert "first failure: rank 1 on node2 exited with 3" in done.err
    assert "  | the reason" in done.err
    assert done.result["first_failure"] == encode(failed("node2", 1, 3))
    assert lab.wait_idle() == {}


@pytest.mark.slow
def test_an_unplugged_host_is_named_and_the_others_are_stopped(
    lab: Lab, begin: Callable[..., Controller]
) -> None:
    """After `lost_s` of silence: exit 4, and what there is no proof of is said."""
    controller = begin("daemon", "deaf")
    lab["node2"].unplug()
    done = controller.wait()
    assert done.code == 4, done
    assert "first failure: lost node2: nothing was heard from it for" in done.err
    assert "node2: could not verify that all processes ended" in done.err
    assert proven_nodes(done.err) == 1
    wait_until(lambda: not lab["node2"].processes(RANK_SCRIPT), "the end of who is cut off")


@pytest.mark.slow
def test_ctrl_c_with_a_silent_host_is_5(
    lab: Lab, on_lab: Launcher, begin: Callable[..., Controller]
) -> None:
    """A stop that cannot be proven names the host; that ends its part when it hears of it.

    Until then it is the run that `stop --run latest` takes, and afterwards its end is on record.
    """
    controller = begin(overrides=("lost_s=120",))
    lab["node2"].unplug()
    controller.send()
    done = controller.wait()
    assert done.code == 5, done
    assert "node2: could not verify that all processes ended" in done.err
    unsure = on_lab("stop", "--run", "latest")
    assert (unsure.code, "may still run on node2" in unsure.out) == (5, True), unsure
    lab["node2"].plug()
    stopped = on_lab("stop", "--run", controller.run_id)
    assert stopped.code == 0, stopped
    assert lab.wait_idle(40) == {}
    result = json.loads((controller.folder / "result.json").read_text())
    assert (result["state"], result["unverified"]) == ("stopped", []), result
    over = on_lab("stop", "--run", "latest")
    assert (over.code, "no run launched from this folder is running" in over.err) == (2, True), over


@pytest.mark.slow
@pytest.mark.promise(1)
def test_a_console_nobody_reads_holds_up_nothing(lab: Lab, on_lab: Launcher) -> None:
    """With a full pipe the ranks finish and the supervisors still hear their controller."""
    disconnect_s = 15
    reading, writing = os.pipe()
    argv = [sys.executable, "-m", "runner", "cluster=lab", f"disconnect_s={disconnect_s}", GRACE]
    argv += on_lab.rank_overrides("lines=100000", "touch=/dev/shm/up", "wait=/dev/shm/go")
    hosts = [lab["node1"], lab["node2"]]
    process = subprocess.Popen(
        argv, cwd=on_lab.folder, env=on_lab.env, stdout=writing, stderr=subprocess.DEVNULL
    )
    os.close(writing)
    try:
        for host in hosts:
            wait_until(lambda: host.sh("ls /dev/shm/up", check=False), "the lines", 60)  # noqa: B023
        time.sleep(disconnect_s + 2)
        assert process.poll() is None
        assert all(host.processes("rank.py") for host in hosts)
        for host in hosts:
            host.sh("touch /dev/shm/go")
        with os.fdopen(reading, "rb") as pipe:
            assert pipe.read().count(b"\n") == 2 * 100_000
        assert process.wait(30 * PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


def test_a_taken_master_port_is_retried_once(lab: Lab, on_lab: Launcher) -> None:
    """A program that listens on the reserved port makes the run start anew on another.

    The hosts can relaunch that attempt, as any other.
    """
    thief = lab["node1"].popen([sys.executable, str(PROGRAMS / "thief.py")])
    try:
        done = on_lab("cluster=lab", "task=env", "relaunch.max=1")
    finally:
        with contextlib.suppress(ProcessLookupError):
            thief.kill()
        thief.wait()
    assert done.code == 0, done
    assert "retrying with another port" in done.err
    assert [event["kind"] for event in done.events].count("port_taken") == 1
    plan = json.loads((done.folder / "plan.json").read_text())
    assert [share["order"]["relaunches_left"] for share in plan["nodes"]] == [1, 1]


def test_a_disk_that_fills_up_ends_that_run_with_that_message(
    lab: Lab, begin: Callable[..., Controller]
) -> None:
    """Its supervisor keeps room for the last lines of its record."""
    controller = begin()
    lab["node2"].fill_disk()
    lab["node2"].kill(find(lab, "node2", f"{sys.executable} -u {RANK_SCRIPT}").pid)
    done = controller.wait()
    assert done.code == 1, done
    assert "node2" in done.err.partition("first failure: ")[2]
    assert proven_nodes(done.err) == 2
    assert "No space left" in done.err, done
    assert lab.wait_idle() == {}
