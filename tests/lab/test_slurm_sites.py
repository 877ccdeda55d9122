"""Runs on other Slurms: with cgroups, with a home that lags."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.lab import LabFactory
from tests.lab.slurm import BY_CGROUP, HPC, ROOT, RUNNER, HpcLauncher, Slurm, begun, slurm_lab
from tests.lab.waiting import wait_until

pytestmark = pytest.mark.slurm

NODES = ("node1", "node2")
OF_CGROUPS = ("cg1", "cg2")
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
def by_cgroup(lab_factory: LabFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A login node, and two compute nodes with cgroups."""
    folder = tmp_path_factory.mktemp("cgroups")
    with slurm_lab(lab_factory, folder, OF_CGROUPS, lines=BY_CGROUP) as slurm:
        yield slurm


@pytest.fixture
def launcher(by_cgroup: Slurm, tmp_path: Path) -> Iterator[HpcLauncher]:
    folder = tmp_path / "project"
    folder.mkdir()
    with contextlib.closing(HpcLauncher(folder, by_cgroup)) as launcher:
        yield launcher
    by_cgroup.clear()


def test_a_detached_run_in_an_allocation_goes_on(by_cgroup: Slurm, launcher: HpcLauncher) -> None:
    """Slurm ends what a step leaves behind: its agent stays."""
    words = " ".join(f"'{word}'" for word in (HPC, *launcher.rank_overrides("sleep=300")))
    script = launcher.folder / "script"
    runner = f"env PYTHONPATH={ROOT} {' '.join(RUNNER)}"
    script.write_text(f"""
cd {launcher.folder}
{runner} {words} detach=true && {runner} ps
""")
    out = by_cgroup.sh(f"timeout 100 salloc -N2 bash {script} 2>&1", timeout=60, check=False)
    assert re.search(r" running .*cg\[1-2\]", out), out
    by_cgroup.clear()
    assert not any(host.processes("RUNNER_RUN_ID") for host in by_cgroup.nodes.values())


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
        folder.mkdir()
        inside = "/home/alice/project"
        with contextlib.closing(HpcLauncher(folder, slurm, inside)) as launcher:
            failed = launcher.run_ranks(f"print=hello sleep={LAG_S + 2} fail=1:7 sleep=300", HPC)
            assert "first failure: rank 1 on node2 exited with 7" in failed.err, failed
            assert failed.log("node2", 1) == "hello\n"
            started = begun(launcher, "sleep=300")
            started.send()
            assert started.wait().code == 130
        wait_until(lambda: not slurm.jobs(), "the job to end", 20)
        for host in slurm.lab.hosts.values():
            host.sh("umount --lazy /home", user="root")
