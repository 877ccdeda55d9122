"""Ends of every kind, on real hosts: each as designed, with nothing left anywhere.

The shared lab's own fixture looks at every host after each test and fails it if anything of the
run is still there.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Callable

import pytest

from tests.lab.inspecting import proven_nodes
from tests.lab.lab import Lab
from tests.lab.launching import PROGRAMS, Controller, Launcher, program

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


@pytest.mark.over_openssh
@pytest.mark.parametrize(("entry", "grace_s"), [("torchrun", 2), ("plain", 900)])
def test_ctrl_c_ends_deaf_ranks_and_their_daemons(
    lab: Lab, begin: Callable[..., Controller], entry: str, grace_s: int
) -> None:
    """Ranks that ignore INT and TERM, with a deaf child in its own session: gone, and proven.

    A second one skips the grace.
    """
    controller = begin("daemon", "deaf", overrides=(f"grace_s={grace_s}",), entry=entry)
    controller.send()
    if grace_s > 2:
        controller.until(lambda: "stopping" in controller.err, "the first word")
        controller.send()
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
    left = "may still run on node2; when reachable again: python -m runner "
    retry = shlex.split(unsure.out.partition(left)[2])
    assert (unsure.code, retry[:1]) == (5, ["stop"]), unsure
    lab["node2"].plug()
    on_lab.succeed(*retry)
    assert lab.wait_idle(40) == {}
    result = json.loads((controller.folder / "result.json").read_text())
    assert (result["state"], result["unverified"]) == ("stopped", []), result
    over = on_lab("stop", "--run", "latest")
    assert (over.code, "no run launched from this folder is running" in over.err) == (2, True), over
