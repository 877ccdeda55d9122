"""Ends of every kind, on real hosts: each as designed, with nothing left anywhere.

The shared lab's own fixture looks at every host after each test and fails it if anything of the
run is still there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.lab.inspecting import proven_nodes
from tests.lab.lab import Lab
from tests.lab.lab.processes import Process
from tests.lab.launching import PROGRAMS, RANK_SCRIPT, Controller, Launcher
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.promise(2)]

GRACE = "grace_s=2"


@pytest.fixture
def begin(on_lab: Launcher) -> Callable[..., Controller]:
    """Start ranks that do as told and then sleep, and wait until all of them run.

    Four hosts take part, or three with torchrun.
    """

    def start(*words: str, overrides: tuple[str, ...] = (), entry: str = "plain") -> Controller:
        on_lab.entry = entry
        ranks = on_lab.rank_overrides(*words, "print=up", "sleep=600")
        hosts = 3 if entry == "torchrun" else 4
        only = f"cluster.only=[node[1-{hosts}]]"
        controller = on_lab.start("cluster=lab", only, GRACE, *overrides, *ranks)
        controller.until_printed("] up", hosts)
        return controller

    return start


def find(lab: Lab, node: str, *words: str) -> Process:
    """The oldest process of a node whose command line begins with the first of the words."""
    found = [
        process
        for process in lab[node].processes()
        if process.cmdline.startswith(words[0]) and all(word in process.cmdline for word in words)
    ]
    assert found, (words, lab[node].processes())
    return min(found, key=lambda process: process.pid)


def test_ctrl_c_ends_deaf_ranks_and_their_daemons(
    lab: Lab, begin: Callable[..., Controller]
) -> None:
    """Ranks that ignore INT and TERM, with a deaf child in its own session: gone in grace + 3 s."""
    controller = begin("daemon", "deaf", entry="torchrun")
    began = time.monotonic()
    controller.send(signal.SIGINT)
    done = controller.wait(30)
    took = time.monotonic() - began
    assert done.code == 130, done
    assert took < 2 + 3, done
    assert lab.wait_idle() == {}
    assert proven_nodes(done.err) == 3
    assert "stopped" in done.err


def test_polite_ranks_end_at_once(begin: Callable[..., Controller]) -> None:
    """Nobody waits for a grace that nobody needs."""
    controller = begin(overrides=("grace_s=60",), entry="torchrun")
    began = time.monotonic()
    controller.send(signal.SIGTERM)
    done = controller.wait(40)
    assert done.code == 143, done
    assert time.monotonic() - began < 10


def test_a_second_ctrl_c_hurries(lab: Lab, begin: Callable[..., Controller]) -> None:
    """It skips the grace, and still proves the end."""
    controller = begin("daemon", "deaf", overrides=("grace_s=120",))
    controller.send()
    controller.until(lambda: "stopping" in controller.err, "the first word")
    controller.send()
    began = time.monotonic()
    done = controller.wait(30)
    assert done.code == 130, done
    assert time.monotonic() - began < 5
    assert lab.wait_idle() == {}


@pytest.mark.promise(12)
def test_stopping_one_run_leaves_another_alone(
    lab: Lab, on_lab: Launcher, begin: Callable[..., Controller]
) -> None:
    """Two runs side by side on the same hosts."""
    first = begin("daemon", "deaf")
    words = ("touch=/dev/shm/second", "wait=/dev/shm/go", "print=done")
    second = on_lab.start("cluster=lab", *on_lab.rank_overrides(*words))
    for host in lab.hosts.values():
        second.until(lambda host=host: host.sh("ls /dev/shm/second", check=False), "the second")  # type: ignore[misc]
    first.send()
    assert first.wait(30).code == 130
    for host in lab.hosts.values():
        host.sh("touch /dev/shm/go")
    done = second.wait()
    assert done.code == 0, done
    assert done.out.count("] done") == 4


def test_a_killed_controller_leaves_nothing(lab: Lab, begin: Callable[..., Controller]) -> None:
    """Supervisors that hear no controller any more stop the run by themselves."""
    controller = begin("daemon", "deaf", overrides=("disconnect_s=2",))
    controller.kill()
    assert lab.wait_idle(20) == {}


def test_a_killed_supervisor_ends_the_run(lab: Lab, begin: Callable[..., Controller]) -> None:
    """Its guardian kills what it left, and says so."""
    controller = begin("daemon", "deaf", entry="torchrun")
    torchrun = find(lab, "node3", f"{sys.executable} -m torch.distributed.run")
    lab["node3"].kill(torchrun.ppid)
    done = controller.wait(40)
    assert done.code == 1, done
    assert "its supervisor ended by signal 9" in done.err
    assert lab.wait_idle() == {}


@pytest.mark.all
def test_a_killed_torchrun_ends_the_run(lab: Lab, begin: Callable[..., Controller]) -> None:
    """It is named as the first failure, and nothing is left."""
    controller = begin("daemon", "deaf", entry="torchrun")
    lab["node3"].kill(find(lab, "node3", f"{sys.executable} -m torch.distributed.run").pid)
    done = controller.wait(40)
    assert done.code == 1, done
    assert "first failure: node3: torchrun was killed by SIGKILL" in done.err
    assert lab.wait_idle() == {}


@pytest.mark.all
def test_a_killed_rank_ends_the_run(lab: Lab, begin: Callable[..., Controller]) -> None:
    """Its node and global rank are named, and the signal in words."""
    controller = begin("daemon", "deaf", entry="torchrun")
    lab["node3"].kill(find(lab, "node3", f"{sys.executable} -u {RANK_SCRIPT}").pid)
    done = controller.wait(40)
    assert done.code == 1, done
    assert "first failure: rank 2 on node3 was killed by SIGKILL" in done.err
    assert lab.wait_idle() == {}


def test_one_failing_rank_stops_everybody(lab: Lab, on_lab: Launcher) -> None:
    """Ranks that do not talk to the failed one are stopped too, at once."""
    words = on_lab.rank_overrides("err=the reason", "fail=1:3", "sleep=600")
    done = on_lab("cluster=lab", "cluster.only=[node1,node2]", *words, seconds=60)
    assert done.code == 1, done
    assert "first failure: rank 1 on node2 exited with 3" in done.err
    assert "  | the reason" in done.err
    assert done.result["first_failure"] == {"node": "node2", "rank": 1, "reason": "exited with 3"}
    assert lab.wait_idle() == {}


def test_an_unplugged_host_is_named_and_the_others_are_stopped(
    lab: Lab, on_lab: Launcher, begin: Callable[..., Controller]
) -> None:
    """After `lost_s` of silence: exit 4, and what there is no proof is said."""
    controller = begin(
        "daemon", "deaf", overrides=("lost_s=3", "disconnect_s=3", "cluster.ssh.connect_timeout=2")
    )
    lab["node2"].unplug()
    done = controller.wait(60)
    assert done.code == 4, done
    assert "first failure: node2: nothing was heard from it for" in done.err
    assert "node2: could not verify that all processes ended" in done.err
    assert proven_nodes(done.err) == 3
    assert lab.wait_idle(20) == {}


@pytest.mark.promise(4)
def test_an_unplugged_host_is_asked_once_more_over_a_new_connection(
    lab: Lab, on_lab: Launcher, begin: Callable[..., Controller]
) -> None:
    """That costs `connect_timeout` after the loss, not another one for the silent connection."""
    lost_s, answer_s = 3.0, 4.0
    limits = (f"lost_s={lost_s:g}", f"cluster.ssh.connect_timeout={answer_s:g}")
    controller = begin(overrides=(*limits, "disconnect_s=3", "grace_s=8"))
    lab["node2"].unplug()
    began = time.monotonic()
    done = controller.wait(60)
    seconds = time.monotonic() - began
    assert done.code == 4, done
    assert seconds < lost_s + 1.6 * answer_s
    assert proven_nodes(done.err) == 3
    assert lab.wait_idle(20) == {}


@pytest.mark.all
def test_a_power_cut_ends_the_run(lab: Lab, begin: Callable[..., Controller]) -> None:
    """The lost host is named, the rest is stopped and proven."""
    controller = begin(overrides=("lost_s=3", "cluster.ssh.connect_timeout=2"))
    lab["node4"].power_off()
    done = controller.wait(60)
    assert done.code == 4, done
    assert "node4" in done.err


def test_ctrl_c_with_a_silent_host_is_5(
    lab: Lab, on_lab: Launcher, begin: Callable[..., Controller]
) -> None:
    """A stop that cannot be proven names the host."""
    controller = begin(overrides=("lost_s=30", "disconnect_s=3", "cluster.ssh.connect_timeout=2"))
    lab["node2"].unplug()
    controller.send()
    done = controller.wait(60)
    assert done.code == 5, done
    assert "node2: could not verify that all processes ended" in done.err
    assert lab.wait_idle(20) == {}


@pytest.mark.all
def test_a_short_stall_is_no_loss(lab: Lab, begin: Callable[..., Controller]) -> None:
    """A network that is away for less than `lost_s` changes nothing."""
    controller = begin(overrides=("lost_s=20", "disconnect_s=20"))
    lab["node2"].unplug()
    time.sleep(3)
    lab["node2"].plug()
    time.sleep(3)
    assert controller.process.poll() is None, controller.err
    controller.send()
    assert controller.wait(40).code == 130


@pytest.mark.promise(1)
def test_a_console_nobody_reads_holds_up_nothing(lab: Lab, on_lab: Launcher) -> None:
    """With a full pipe the ranks finish and the supervisors still hear their controller."""
    reading, writing = os.pipe()
    argv = [sys.executable, "-m", "runner", "cluster=lab", "disconnect_s=3", GRACE]
    argv += on_lab.rank_overrides("lines=100000", "touch=/dev/shm/RANK.done", "sleep=6")
    process = subprocess.Popen(
        argv, cwd=on_lab.folder, env=on_lab.env, stdout=writing, stderr=subprocess.DEVNULL
    )
    os.close(writing)
    try:
        for rank, host in enumerate(lab.hosts.values()):
            done = f"ls /dev/shm/{rank}.done"
            wait_until(lambda: host.sh(done, check=False), done, 60)  # noqa: B023
        time.sleep(5)
        assert process.poll() is None
        assert all(host.processes("rank.py") for host in lab.hosts.values())
        with os.fdopen(reading, "rb") as pipe:
            assert pipe.read().count(b"\n") == 4 * 100_000
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_a_taken_master_port_is_retried_once(lab: Lab, on_lab: Launcher) -> None:
    """A program that listens on the reserved port makes the run start anew on another."""
    thief = lab["node1"].popen([sys.executable, str(PROGRAMS / "thief.py")])
    try:
        done = on_lab("cluster=lab", "cluster.only=[node1,node2]", "task=env", seconds=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            thief.kill()
        thief.wait()
    assert done.code == 0, done
    assert "retrying with another port" in done.err
    assert [event["kind"] for event in done.events].count("port_taken") == 1


def test_a_fixed_master_port_that_is_taken_is_refused_before_the_start(
    lab: Lab, on_lab: Launcher
) -> None:
    """The key, the port and who holds it are named; nothing is started."""
    holder = lab["node1"].popen([sys.executable, "-m", "http.server", "29555"])
    try:
        wait_until(lambda: ":29555 " in lab["node1"].sh("ss -ltn"), "the listener")
        done = on_lab("cluster=lab", "task=env", "cluster.master_port=29555")
    finally:
        holder.kill()
        holder.wait()
    assert done.code == 3, done
    assert "cluster.master_port" in done.err
    assert "29555" in done.err
    assert "http.server" in done.err


def test_a_host_that_refuses_its_order_stops_the_others(lab: Lab, on_lab: Launcher) -> None:
    """What could not be seen before (here, a file where the runs' folder should be): exit 3."""
    lab["node3"].sh("mkdir ~/.odd; touch ~/.odd/runs")
    words = on_lab.rank_overrides("deaf", "sleep=600")
    done = on_lab("cluster=lab", GRACE, 'cluster.workdir="~/.odd"', *words, seconds=60)
    assert done.code == 3, done
    assert "first failure: node3: could not start: " in done.err
    assert done.result["exit_code"] == 3
    assert lab.wait_idle() == {}


def test_a_disk_that_fills_up_ends_that_run_with_that_message(
    lab: Lab, begin: Callable[..., Controller]
) -> None:
    """Its supervisor keeps room for the last lines of its record."""
    controller = begin(entry="torchrun")
    lab["node2"].fill_disk()
    lab["node2"].kill(find(lab, "node2", f"{sys.executable} -u {RANK_SCRIPT}").pid)
    done = controller.wait(40)
    assert done.code == 1, done
    assert "node2" in done.err.partition("first failure: ")[2]
    assert proven_nodes(done.err) == 3
    assert "No space left" in done.err, done
    assert lab.wait_idle() == {}
