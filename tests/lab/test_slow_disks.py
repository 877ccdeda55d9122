"""Disks that do not answer: they end no run, and the host says so."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from runner.core.wire.events import ProgramStarted
from runner.core.wire.paths import PROGRAM_LOG
from runner.core.wire.states import State
from runner.host.storage.run_owner import RunSocket
from tests.lab.lab import FreezableDisk, Host, Lab, LabFactory, NetworkDisk, Process
from tests.lab.launching import RANK_SCRIPT, Controller, Launcher
from tests.lab.supervising import RunStarter, SupervisedRun
from tests.lab.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.promise(11)]

FROZEN_S = 18.0
"""Longer than `lost_s`."""

BOTH = ("node1", "node2")
KINDS = {"writes wait": FreezableDisk, "reads wait too": NetworkDisk}
READS_FIRST = pytest.mark.parametrize(
    "disks", [pytest.param("writes wait", marks=pytest.mark.all), "reads wait too"], indirect=True
)

Begin = Callable[..., Controller]


@pytest.fixture(scope="module", params=list(KINDS))
def disks(request: pytest.FixtureRequest, lab_factory: LabFactory) -> Iterator[Lab]:
    with lab_factory(n=2, disk=KINDS[request.param]) as lab:
        yield lab


@pytest.fixture
def user(disks: Lab, launcher: Launcher) -> Iterator[Launcher]:
    """A user of these hosts; in the end their disks answer, and nothing is left on them."""
    disks.write_cluster(launcher.conf)
    yield launcher
    disks.repair()
    assert disks.wait_idle(15) == {}
    assert disks.crashes() == {}
    disks.reset_homes()


@pytest.fixture
def begin(user: Launcher) -> Begin:
    """Start ranks that write no file until they are told to end, and wait until all run."""

    def start(*overrides: str) -> Controller:
        words = user.rank_overrides("print=up", "wait=/dev/shm/go", "print=done")
        controller = user.start("cluster=lab", *overrides, *words)
        controller.until_printed("] up", 2)
        controller.until_joined()
        return controller

    return start


def _ranks(host: Host) -> list[Process]:
    """The ranks without their shims, which wait to record the end."""
    return [rank for rank in host.processes(RANK_SCRIPT) if "attempt_0" not in rank.cmdline]


def _let_go_on(disks: Lab, controller: Controller, frozen: Sequence[str]) -> None:
    """The disks answer again, which is shown, and the ranks may end: the run has succeeded."""
    for node in frozen:
        assert f"{node}: its disk has not answered for" in controller.err
        disks[node].thaw_disk()
    for node in frozen:
        controller.until(lambda n=node: f"{n}: its disk answers again" in controller.err, "it")  # type: ignore[misc]
    for host in disks.hosts.values():
        host.sh("touch /dev/shm/go")
    done = controller.wait()
    assert done.code == 0, done
    assert done.out.count("] done") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "frozen", [BOTH, *(pytest.param((node,), marks=pytest.mark.all, id=node) for node in BOTH)]
)
def test_a_frozen_disk_ends_nothing(disks: Lab, begin: Begin, frozen: tuple[str, ...]) -> None:
    """The hub's, a member's, or all of them, for longer than makes a host lost."""
    controller = begin()
    for node in frozen:
        disks[node].freeze_disk()
    time.sleep(FROZEN_S)
    _let_go_on(disks, controller, frozen)


@pytest.mark.slow
@READS_FIRST
def test_a_stop_does_not_wait_for_the_disk(disks: Lab, begin: Begin) -> None:
    """The ranks are ended; that it is not on record is said, with the host and the reason."""
    controller = begin("grace_s=0.5")
    disks["node2"].freeze_disk()
    controller.send()
    wait_until(lambda: not _ranks(disks["node2"]), "the end of the rank")
    done = controller.wait()
    assert done.code == 5, done
    assert "node2: its disk has not answered for" in done.err
    disks["node2"].thaw_disk()
    record = disks["node2"].home / ".runner/runs" / done.folder.name / "node2/events.jsonl"
    wait_until(lambda: '"ended"' in record.read_text(), "the record to be completed")
    assert '"state":"stopped"' in record.read_text()


def _launch_into(disks: Lab, user: Launcher, frozen: Sequence[str], files: int = 300) -> Controller:
    (user.folder / "data").mkdir()
    for number in range(files):
        (user.folder / f"data/{number}").write_text(str(number))
    words = user.rank_overrides("wait=/dev/shm/go", "print=done")
    controller = user.start("cluster=lab", *words)
    for node in frozen:
        runs = disks[node].home / ".runner/runs"
        wait_until(lambda r=runs: any(r.glob("*/*/work/data")), "its folder", 60)  # type: ignore[misc]
        disks[node].freeze_disk()
    return controller


@pytest.mark.slow
@READS_FIRST
def test_a_launch_waits_for_the_disk(disks: Lab, user: Launcher) -> None:
    """It hangs while a host makes the run's folder and starts the program."""
    controller = _launch_into(disks, user, BOTH)
    time.sleep(FROZEN_S)
    _let_go_on(disks, controller, BOTH)


@pytest.mark.all
def test_a_launch_that_waits_for_the_disk_can_be_stopped(disks: Lab, user: Launcher) -> None:
    """At once; when the disk answers, what was made of the run is removed."""
    controller = _launch_into(disks, user, ["node2"], files=6000)
    controller.until(lambda: "node2: its disk has not answered for" in controller.err, "it")
    controller.send()
    done = controller.wait()
    assert done.code == 130, done
    assert "never started" in done.err
    disks["node2"].thaw_disk()
    folder = disks["node2"].home / ".runner/runs" / done.folder.name / "node2"
    wait_until(lambda: not folder.exists(), "its end")


@pytest.fixture
def stuck_start(start: RunStarter) -> SupervisedRun:
    """A run whose program cannot start yet: its log is a pipe, whose open(2) waits for a reader."""
    return start("print=up", ranks=1, start_as="stuck")


def _until_it_says_so(run: SupervisedRun) -> None:
    """Renew the lease until the answer is that the disk does not answer."""
    agent = RunSocket(run.folder).connect()
    assert agent is not None
    agent.settimeout(10 * PATIENCE)
    with agent, agent.makefile("rb") as answers:
        wait_s = 0.0
        while wait_s < 0.3:
            agent.send(b'{"command": "renew_lease"}\n')
            wait_s = json.loads(answers.readline())["disk_wait_s"]


def _answer(run: SupervisedRun) -> None:
    os.close(os.open(run.folder.stream_log(0, PROGRAM_LOG, "out"), os.O_RDONLY))


def test_a_start_that_hangs_can_be_stopped(stuck_start: SupervisedRun) -> None:
    """The program is not started when the disk answers at last."""
    _until_it_says_so(stuck_start)
    stuck_start.send_command("stop")
    _until_it_says_so(stuck_start)
    _answer(stuck_start)
    assert stuck_start.wait_ended().state is State.STOPPED
    assert stuck_start.bodies(ProgramStarted) == []
