"""Other users of a host: what they put where we work does nothing, and what is theirs is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.lab.lab import Lab, LabFactory
from tests.lab.launching import PLAIN_ENTRY, Launcher, Result

STRANGER = "nobody"
SLEEP, BECOME = "/home/set-uid-sleep", "/home/set-uid-setpriv"
"""Programs of a host where /proc hides the processes of others (hidepid=2)."""


@pytest.mark.promise(3)
def test_a_launch_needs_nothing_of_tmp(lab: Lab, on_lab: Launcher) -> None:
    """Not read-only and noexec on one host, not with a stranger's folders on the other."""
    squatted = " ".join(f"/tmp/runner-2001{ending}" for ending in ("", "-a", "-b", "-c"))
    mount = "mount -o remount,bind,{} /tmp"
    with (
        lab["node1"].changed(mount.format("ro,noexec"), mount.format("rw,exec")),
        lab["node2"].changed(f"mkdir {squatted}", f"rmdir {squatted}"),
    ):
        launch = ("cluster=lab", *on_lab.rank_overrides("print=up"))
        checked = on_lab("check", *launch)
        assert checked.code == 0, checked
        done = on_lab(*launch)
    assert done.code == 0, done
    assert done.out.count("] up") == 2


@pytest.mark.promise(12)
def test_a_folder_that_a_stranger_made_runs_nothing(lab: Lab, on_lab: Launcher) -> None:
    """Not even with our tasks in it, since he could change them: refused before anything runs."""
    plant = "mkdir -m 777 /tmp/x && mkdir -m 777 /tmp/x/tasks"
    with lab["node2"].changed(f"setpriv --reuid={STRANGER} sh -c '{plant}'", "rm -rf /tmp/x"):
        words = ("cluster.workdir=/tmp/x", *on_lab.rank_overrides("print=up"))
        done = on_lab("cluster=lab", *words)
        checked = on_lab("check", "cluster=lab", *words)
    for refused in (done, checked):
        assert refused.code == 3, refused
    assert f"node2: cluster.workdir: /tmp/x belongs to the user {STRANGER}\n" in done.err
    assert "cluster.workdir=/tmp/x-${oc.env:USER}" in done.err
    assert f"/tmp/x belongs to the user {STRANGER}" in checked.out
    assert lab["node1"].sh("ls /tmp/x", check=False) == ""


@pytest.mark.promise(7)
@pytest.mark.usefixtures("lab")
def test_a_store_that_unpickles_is_said(on_lab: Launcher) -> None:
    """By `check`, with the way that has no such store."""
    checked = on_lab("check", "cluster=lab", "rendezvous=c10d")
    said = " ".join(checked.out.split())
    assert "whoever reaches the store that the nodes meet at can run code" in said
    assert "rendezvous=static" in said


@pytest.fixture(scope="module")
def hiding(lab_factory: LabFactory) -> Iterator[Lab]:
    """A host with two set-uid programs; one becomes root for good."""
    with lab_factory(n=1) as lab:
        lab["node1"].sh("mount -o remount,hidepid=2 /proc; chmod 755 /home", user="root")
        for name, copy in (("sleep", SLEEP), ("setpriv", BECOME)):
            lab["node1"].sh(f"install -m 4755 $(command -v {name}) {copy}", user="root")
        yield lab


@pytest.fixture
def leave(hiding: Lab, launcher: Launcher) -> Iterator[Callable[[str], Result]]:
    """Run, as an ordinary user, a rank that leaves a process behind."""
    hiding.write_cluster(launcher.conf)

    def run(left_behind: str) -> Result:
        command = f"task.command=[sh,-c,'{left_behind} >/dev/null 2>&1 & sleep 1; echo up']"
        return launcher("cluster=lab", PLAIN_ENTRY, "grace_s=0.3", command)

    yield run
    hiding.kill_all()


@pytest.mark.promise(2, 13)
def test_a_hidden_process_is_ended(hiding: Lab, leave: Callable[[str], Result]) -> None:
    """The kernel names it and lets us signal it: its real user is ours."""
    done = leave(f"{SLEEP} 600")
    assert done.code == 0, done
    assert "0 processes left" in done.err
    assert hiding["node1"].processes(SLEEP) == []


@pytest.mark.promise(2, 13)
def test_what_cannot_be_ended_is_named(hiding: Lab, leave: Callable[[str], Result]) -> None:
    """A program that became another user: nothing is proven, and that is said."""
    done = leave(f"{BECOME} --reuid=0 --clear-groups sleep 601")
    assert done.code == 5, done
    (left,) = (each for each in hiding["node1"].processes() if each.cmdline == "sleep 601")
    assert str(left.pid) in done.err
    assert "0 processes left" not in done.err
