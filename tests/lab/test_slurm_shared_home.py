"""Slurm with a home that lags: each machine believes for a while what it has seen of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.lab import LabFactory
from tests.lab.launching import Launcher
from tests.lab.slurm import HPC, Slurm, begun, slurm_lab
from tests.lab.waiting import wait_until

pytestmark = pytest.mark.slurm

LAG_S = 5
"""For as long a machine takes a size, a time and the absence of a file as they were (NFS: 3 to 60
seconds). What it opens it asks the server about, as NFS does (close-to-open consistency)."""

MOUNT = f"""
cd /
mkdir -p /run/server
mount --bind /home /run/server
mount --make-private /run/server
lag=attr_timeout={LAG_S},entry_timeout={LAG_S},negative_timeout={LAG_S}
bindfs -f -o nonempty,allow_other,auto_cache,$lag /run/server /home </dev/null >/run/log 2>&1 &
until grep -q ' /home fuse' /proc/mounts; do kill -0 $! && sleep 0.05; done
"""


@pytest.fixture(scope="module")
def slurm(
    lab_factory_for_session: LabFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Slurm]:
    with slurm_lab(
        lab_factory_for_session, tmp_path_factory.mktemp("lag"), ("node1", "node2")
    ) as slurm:
        for host in slurm.lab.hosts.values():
            host.sh(MOUNT, user="root")
        yield slurm
        for host in slurm.lab.hosts.values():
            host.sh("umount --lazy /home", user="root")


@pytest.fixture
def hpc(slurm: Slurm, launcher: Launcher) -> Iterator[Launcher]:
    slurm.write_cluster(launcher.conf)
    yield launcher
    slurm.clear()


def test_run_on_a_home_that_lags(slurm: Slurm, hpc: Launcher) -> None:
    """Facts, orders, commands and logs arrive all the same."""
    node = slurm.nodes["node1"]
    look = "cat probe 2>/dev/null || echo none"
    assert node.sh(look) == "none\n"
    slurm.login.sh("echo there > probe")
    assert node.sh(look) == "none\n", "this home does not lag"
    failed = hpc.run_ranks("print=hello fail=1:7 sleep=300", HPC)
    assert "first failure: rank 1 on node2 exited with 7" in failed.err, failed
    assert failed.log("node2", 1) == "hello\n"
    started = begun(hpc, "sleep=300")
    started.send()
    assert started.wait().code == 130
    wait_until(lambda: not slurm.jobs(), "the job to end", 20)
