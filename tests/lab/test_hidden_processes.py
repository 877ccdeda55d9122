"""Hosts where /proc hides the processes of others (hidepid=2), as many shared machines have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.lab.lab import Lab, LabFactory
from tests.lab.launching import PLAIN_ENTRY, Launcher, Result

pytestmark = [pytest.mark.promise(2, 13)]

SLEEP, BECOME = "/home/set-uid-sleep", "/home/set-uid-setpriv"


@pytest.fixture(scope="module")
def hiding(lab_factory_for_session: LabFactory) -> Iterator[Lab]:
    """A host with two set-uid programs; one becomes root for good."""
    with lab_factory_for_session(n=1) as lab:
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


def test_a_hidden_process_is_ended(hiding: Lab, leave: Callable[[str], Result]) -> None:
    """The kernel names it and lets us signal it: its real user is ours."""
    done = leave(f"{SLEEP} 600")
    assert done.code == 0, done
    assert "0 processes left" in done.err
    assert hiding["node1"].processes(SLEEP) == []


def test_what_cannot_be_ended_is_named(hiding: Lab, leave: Callable[[str], Result]) -> None:
    """A program that became another user: nothing is proven, and that is said."""
    done = leave(f"{BECOME} --reuid=0 --clear-groups sleep 601")
    assert done.code == 5, done
    (left,) = (each for each in hiding["node1"].processes() if each.cmdline == "sleep 601")
    assert str(left.pid) in done.err
    assert "0 processes left" not in done.err
