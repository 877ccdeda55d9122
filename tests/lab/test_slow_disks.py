"""Slow and strange disks: one that does not answer ends no run, and the host says so."""

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
from tests.lab.launching import PLAIN_ENTRY, RANK_SCRIPT, Controller, Launcher
from tests.lab.supervising import RunStarter
from tests.lab.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.promise(11)]

NOEXEC = "/run/noexec"

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
        disks[node].disk.thaw()
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
        disks[node].disk.freeze()
    time.sleep(FROZEN_S)
    _let_go_on(disks, controller, frozen)


@pytest.mark.slow
@READS_FIRST
def test_a_stop_does_not_wait_for_the_disk(disks: Lab, begin: Begin) -> None:
    """The ranks are ended; that it is not on record is said, with the host and the reason."""
    controller = begin("grace_s=0.5")
    disks["node2"].disk.freeze()
    controller.send()
    wait_until(lambda: not _ranks(disks["node2"]), "the end of the rank")
    done = controller.wait()
    assert done.code == 5, done
    assert "node2: its disk has not answered for" in done.err
    disks["node2"].disk.thaw()
    record = disks["node2"].home / ".runner/runs" / done.folder.name / "node2/events.jsonl"
    wait_until(lambda: '"ended"' in record.read_text(), "the record to be completed")
    assert '"state":"stopped"' in record.read_text()


@pytest.mark.slow
@READS_FIRST
def test_a_launch_waits_for_the_disk(disks: Lab, user: Launcher) -> None:
    """It hangs while a host makes the run's folder and starts the program."""
    (user.folder / "data").mkdir()
    for number in range(300):
        (user.folder / f"data/{number}").write_text(str(number))
    controller = user.start("cluster=lab", *user.rank_overrides("wait=/dev/shm/go", "print=done"))
    for node in BOTH:
        runs = disks[node].home / ".runner/runs"
        wait_until(lambda r=runs: any(r.glob("*/*/work/data")), "its folder", 60)  # type: ignore[misc]
        disks[node].disk.freeze()
    time.sleep(FROZEN_S)
    _let_go_on(disks, controller, BOTH)


def test_a_start_that_hangs_can_be_stopped(start: RunStarter) -> None:
    """The supervisor hears agents, and says why; the program is not started any more.

    Its log is a pipe, whose open(2) waits for a reader.
    """
    run = start("print=up", ranks=1, start_as="stuck")
    agent = RunSocket(run.folder).connect()
    assert agent is not None
    agent.settimeout(10 * PATIENCE)
    with agent, agent.makefile("rb") as answers:

        def until_it_says_so() -> None:
            wait_s = 0.0
            while wait_s < 0.3:
                agent.send(b'{"command": "renew_lease"}\n')
                wait_s = json.loads(answers.readline())["disk_wait_s"]

        until_it_says_so()
        run.send_command("stop")
        until_it_says_so()
    os.close(os.open(run.folder.stream_log(0, PROGRAM_LOG, "out"), os.O_RDONLY))
    assert run.wait_ended().state is State.STOPPED
    assert run.bodies(ProgramStarted) == []


@pytest.fixture
def noexec_workdir(lab: Lab) -> Iterator[str]:
    """A workdir on a mount on which two hosts execute no file."""
    hosts = lab["node1"], lab["node2"]
    for host in hosts:
        host.sh(
            f"mkdir {NOEXEC} && mount -t tmpfs -o noexec,mode=1777 noexec {NOEXEC}", user="root"
        )
    yield f"{NOEXEC}/runs"
    for host in hosts:
        host.sh(f"umount --lazy {NOEXEC} && rmdir {NOEXEC}", user="root")


@pytest.mark.promise(3)
def test_workdir_may_be_on_a_mount_that_executes_nothing(
    on_lab: Launcher, noexec_workdir: str
) -> None:
    """Nothing of ours there is executed, and Python reads the program."""
    (on_lab.folder / "train.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    task = ("task.script=train.py", PLAIN_ENTRY, f"cluster.workdir={noexec_workdir}")
    done = on_lab.succeed("cluster=lab", *task)
    assert done.log("node2", 1) == "rank 1\n"
    assert done.result["ranks"].keys() == {"0", "1"}


@pytest.mark.promise(5)
def test_hosts_with_one_home_have_release_and_environment_on_it_once(
    lab_factory: LabFactory, launcher: Launcher
) -> None:
    """One host receives the release for all, one runs `prepare`; `clean` leaves nothing."""
    with lab_factory(n=3, shared_home=True) as lab:
        lab.write_cluster(launcher.conf)
        (launcher.folder / "data").write_bytes(os.urandom(3_000_000))
        (launcher.folder / "show.py").write_text("import os; print(os.path.getsize('data'))")
        deployed = launcher("deploy", "--cluster", "lab", "--json")
        assert deployed.code == 0, deployed
        sent = [size or 0 for size in json.loads(deployed.out)["sent"].values()]
        assert [size > 2_000_000 for size in sorted(sent)] == [False, False, True]
        assert len(lab["node1"].sh("ls ~/.runner/releases").split()) == 1
        prepare = "cluster.prepare=[echo making]"
        done = launcher("cluster=lab", PLAIN_ENTRY, "task.script=show.py", prepare)
        assert (done.code, done.out.count("3000000"), done.out.count("making")) == (0, 3, 1), done
        cleaned = launcher("clean", "--cluster", "lab", "--older-than", "0s", "--json")
        assert cleaned.code == 0, cleaned
        told = json.loads(cleaned.out).values()
        assert [len(said["runs"]) for said in told] == [1, 1, 1]
        assert sum(len(said["releases"]) for said in told) == 1
        assert lab["node1"].sh("ls ~/.runner/pool") == ""
        assert lab["node1"].sh("ls ~/.runner/runs") == ""
