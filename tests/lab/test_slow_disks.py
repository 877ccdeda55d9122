"""Disks that do not answer: they end no run, and the host says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.lab.lab import Host, Lab, LabFactory, Process
from tests.lab.launching import RANK_SCRIPT, Controller, Launcher
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.promise(11), pytest.mark.documents("docs/how-it-works.md")]

LOST_S = 2.0
FROZEN_S = 3 * LOST_S


@pytest.fixture(scope="module")
def disks(lab_factory_for_session: LabFactory) -> Iterator[Lab]:
    """Two hosts whose disks can be frozen."""
    with lab_factory_for_session(n=2, freezable=True) as lab:
        yield lab


@pytest.fixture
def begin(disks: Lab, launcher: Launcher) -> Iterator[Callable[..., Controller]]:
    """Start ranks that write no file until they are told to end, and wait until all run."""
    disks.write_cluster(launcher.conf)
    launcher.entry = "plain"
    launcher.shorten_timeouts()

    def start(*overrides: str) -> Controller:
        words = launcher.rank_overrides("print=up", "wait=/dev/shm/go", "print=done")
        controller = launcher.start("cluster=lab", f"lost_s={LOST_S}", *overrides, *words)
        controller.until_printed("] up", 2)
        controller.until(lambda: '"hub_joined"' in _events(controller), "the hub")
        return controller

    yield start
    disks.repair()
    assert disks.wait_idle(5) == {}
    assert disks.crashes() == {}
    disks.reset_homes()


def _events(controller: Controller) -> str:
    path = controller.folder / "events.jsonl"
    return path.read_text() if path.exists() else ""


def _ranks(host: Host) -> list[Process]:
    """The ranks without their shims, which wait to record the end."""
    return [rank for rank in host.processes(RANK_SCRIPT) if "attempt_0" not in rank.cmdline]


@pytest.mark.parametrize("frozen", [("node1",), ("node2",), ("node1", "node2")])
def test_a_frozen_disk_ends_nothing(
    disks: Lab, begin: Callable[..., Controller], frozen: tuple[str, ...]
) -> None:
    """The hub's, a member's, or all of them, for three times as long as makes a host lost."""
    controller = begin()
    for node in frozen:
        disks[node].freeze_disk()
    time.sleep(FROZEN_S)
    for node in frozen:
        assert f"{node}: its disk has not answered for" in controller.err
        disks[node].thaw_disk()
    for node in frozen:
        controller.until(lambda n=node: f"{n}: its disk answers again" in controller.err, "it")  # type: ignore[misc]
    for host in disks.hosts.values():
        host.sh("touch /dev/shm/go")
    done = controller.wait(20)
    assert done.code == 0, done
    assert done.out.count("] done") == 2


def test_a_stop_does_not_wait_for_the_disk(disks: Lab, begin: Callable[..., Controller]) -> None:
    """The ranks are ended; that it is not on record is said, with the host and the reason."""
    controller = begin("grace_s=0.5")
    disks["node2"].freeze_disk()
    controller.send()
    wait_until(lambda: not _ranks(disks["node2"]), "the end of the rank", 5)
    done = controller.wait(20)
    assert done.code == 5, done
    assert "node2: its disk has not answered for" in done.err
    disks["node2"].thaw_disk()
    record = disks["node2"].home / ".runner/runs" / done.folder.name / "node2/events.jsonl"
    wait_until(lambda: '"ended"' in record.read_text(), "the record to be completed", 10)
    assert '"state":"stopped"' in record.read_text()
