"""Runs on other Slurms: with cgroups and accounts, with docker, with a home that lags."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.engines import Daemon, daemons, missing, overrides
from tests.lab.lab import LabFactory, need
from tests.lab.slurm import BY_CGROUP, HPC, ROOT, RUNNER, HpcLauncher, Slurm, begun, slurm_lab
from tests.lab.waiting import wait_until

pytestmark = pytest.mark.slurm

NODES = ("node1", "node2")
ACCOUNTED = ("acct1", "acct2")
"""Cgroups are the machine's: the nodes of another lab must have other names."""

LAG_S = 5
"""For as long a machine takes a size, a time and the absence of a file as they were (NFS: 3 to 60
seconds). What it opens it asks the server about, as NFS does (close-to-open consistency)."""

LAGGING_HOME = f"""
cd /
mkdir -p /run/server
mount --bind /home /run/server
mount --make-private /run/server
lag=attr_timeout={LAG_S},entry_timeout={LAG_S},negative_timeout={LAG_S}
bindfs -f -o nonempty,allow_other,auto_cache,$lag /run/server /home </dev/null >/run/log 2>&1 &
until grep -q ' /home fuse' /proc/mounts; do kill -0 $! && sleep 0.05; done
"""


@pytest.fixture(scope="module")
def accounted(lab_factory: LabFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A login node with slurmdbd, and two compute nodes with cgroups."""
    folder = tmp_path_factory.mktemp("accounts")
    with slurm_lab(lab_factory, folder, ACCOUNTED, lines=BY_CGROUP) as slurm:
        yield slurm


@pytest.fixture
def spender(accounted: Slurm, tmp_path: Path) -> Iterator[HpcLauncher]:
    with user_of(accounted, tmp_path / "project") as launcher:
        yield launcher
    accounted.clear()


@contextlib.contextmanager
def user_of(slurm: Slurm, folder: Path, inside: str = "") -> Iterator[HpcLauncher]:
    folder.mkdir()
    with contextlib.closing(HpcLauncher(folder, slurm, inside)) as launcher:
        yield launcher


def test_out_of_memory_is_told(spender: HpcLauncher) -> None:
    """The first failure is known, and Slurm says what it was."""
    eats = "x = []\nwhile True:\n    x.append(bytearray(1 << 24))\n"
    (spender.folder / "eats.py").write_text(eats)
    task = ("task.script=eats.py", "task.entry=plain", 'cluster.slurm.extra=["--mem=400M"]')
    done = spender(HPC, *task)
    assert done.code == 1, done
    first = done.err.split("first failure: ")[1].splitlines()[0]
    assert "was killed by SIGKILL" in first
    assert "oom-kill event" in done.err


def test_cgroups_prove_the_end(accounted: Slurm, spender: HpcLauncher) -> None:
    """Deaf ranks and their daemons are killed before Slurm does, and nothing is left in doubt."""
    started = begun(spender, "deaf daemon sleep=300", "grace_s=2")
    accounted.sh(f"scancel --name={started.run_id}")
    done = started.wait()
    assert done.code == 1, done
    assert "ended by Slurm: it was cancelled" in done.err
    assert done.result["unverified"] == []
    assert not any(host.processes("RUNNER_RUN_ID") for host in accounted.nodes.values())


def test_a_detached_run_in_an_allocation_goes_on(accounted: Slurm, spender: HpcLauncher) -> None:
    """Slurm ends what a step leaves behind: its agent stays."""
    words = " ".join(f"'{word}'" for word in (HPC, *spender.rank_overrides("sleep=300")))
    script = spender.folder / "script"
    runner = f"env PYTHONPATH={ROOT} {' '.join(RUNNER)}"
    script.write_text(f"""
cd {spender.folder}
{runner} {words} detach=true && {runner} ps
""")
    out = accounted.sh(f"timeout 100 salloc -N2 bash {script} 2>&1", timeout=60, check=False)
    assert re.search(r" running .*acct\[1-2\]", out), out
    accounted.clear()
    assert not any(host.processes("RUNNER_RUN_ID") for host in accounted.nodes.values())


def test_accounts_that_cannot_be_used_are_named(accounted: Slurm, spender: HpcLauncher) -> None:
    """sbatch refuses an unknown one; a job of a spent one waits, perhaps for ever."""
    done = spender.run_ranks("print=hi", HPC, "cluster.slurm.account=nope")
    assert (done.code, "Invalid account" in done.err) == (3, True), done
    ranks = spender.rank_overrides("print=hi")
    started = spender.start(HPC, *ranks, "cluster.slurm.account=spent")
    started.until(lambda: "is pending (AssocGrp" in started.err, "the reason")
    started.send()
    assert started.wait().code == 130
    assert not accounted.jobs()


@pytest.fixture(scope="module")
def with_docker(
    lab_factory: LabFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Slurm, dict[str, Daemon]]]:
    """A login node and two compute nodes, each with a daemon."""
    need(missing())
    folder = tmp_path_factory.mktemp("docker")
    with slurm_lab(lab_factory, folder, NODES) as slurm:
        for started in daemons(slurm.lab, folder):
            yield slurm, started


@pytest.mark.containers
def test_run_in_containers(with_docker: tuple[Slurm, dict[str, Daemon]], tmp_path: Path) -> None:
    """The first failure is told; neither a stop nor a scancel leaves a container."""
    slurm, docker = with_docker
    with user_of(slurm, tmp_path / "project") as launcher:
        run_in_containers(slurm, docker, launcher)


def run_in_containers(slurm: Slurm, docker: dict[str, Daemon], launcher: HpcLauncher) -> None:
    def left() -> list[str]:
        return [name for daemon in docker.values() for name in daemon.containers()]

    done = launcher.run_ranks("print=inside fail=1:7 sleep=60", HPC, *overrides())
    assert done.code == 1, done
    assert done.log("node2", 1) == "inside\n"
    assert "first failure: rank 1" in done.err, done
    started = begun(launcher, "deaf sleep=300", *overrides())
    assert docker["node1"].containers()
    stopped = launcher("stop", "--run", started.run_id)
    assert stopped.code == 0, stopped
    wait_until(lambda: not slurm.jobs(), "the job to end", 20)
    assert not left()
    # It does not reach what a daemon has started: the supervisors do.
    cancelled = begun(launcher, "deaf sleep=300", "grace_s=2", *overrides())
    slurm.sh("scancel --user=alice")
    done = cancelled.wait()
    assert done.code == 1, done
    assert "first failure: ended by Slurm: it was cancelled" in done.err
    assert not left()


def test_run_on_a_home_that_lags(
    lab_factory: LabFactory,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The record is in it, and arrives all the same."""
    folder = tmp_path_factory.mktemp("lag")
    with slurm_lab(lab_factory, folder, NODES) as slurm:
        for host in slurm.lab.hosts.values():
            host.sh(LAGGING_HOME, user="root")
        node = slurm.nodes["node1"]
        look = "cat probe 2>/dev/null || echo none"
        assert node.sh(look) == "none\n"
        slurm.login.sh("echo there > probe")
        assert node.sh(look) == "none\n", "this home does not lag"
        folder = slurm.login.home / "project"
        with user_of(slurm, folder, "/home/alice/project") as launcher:
            failed = launcher.run_ranks(f"print=hello sleep={LAG_S + 2} fail=1:7 sleep=300", HPC)
            assert "first failure: rank 1 on node2 exited with 7" in failed.err, failed
            assert failed.log("node2", 1) == "hello\n"
            started = begun(launcher, "sleep=300")
            started.send()
            assert started.wait().code == 130
        wait_until(lambda: not slurm.jobs(), "the job to end", 20)
        for host in slurm.lab.hosts.values():
            host.sh("umount --lazy /home", user="root")
