"""Runs on a Slurm with cgroups, accounts and limits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.lab import LabFactory
from tests.lab.launching import Launcher
from tests.lab.slurm import BY_CGROUP, HPC, Slurm, begun, slurm_lab

pytestmark = pytest.mark.slurm

NODES = ("acct1", "acct2")
"""Cgroups are the machine's: the nodes of another lab must have other names."""


@pytest.fixture(scope="module")
def slurm(
    lab_factory_for_session: LabFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Slurm]:
    """A login node with slurmdbd, and two compute nodes with cgroups."""
    folder = tmp_path_factory.mktemp("accounts")
    with slurm_lab(lab_factory_for_session, folder, NODES, lines=BY_CGROUP) as slurm:
        yield slurm


@pytest.fixture
def hpc(slurm: Slurm, launcher: Launcher) -> Iterator[Launcher]:
    slurm.write_cluster(launcher.conf)
    yield launcher
    slurm.clear()


def test_out_of_memory_is_the_verdict(hpc: Launcher) -> None:
    """Only a step of the job says so."""
    eats = "x = []\nwhile True:\n    x.append(bytearray(1 << 24))\n"
    (hpc.folder / "eats.py").write_text(eats)
    task = ("task.script=eats.py", "task.entry=plain", "cluster.slurm.mem_per_rank=200M")
    done = hpc(HPC, *task, "cluster.nodes=1")
    assert done.code == 1, done
    first = done.err.split("first failure: ")[1].splitlines()[0]
    assert "was killed by SIGKILL (Slurm: it took more memory than it had asked for)" in first


def test_cgroups_prove_the_end(slurm: Slurm, hpc: Launcher) -> None:
    """Slurm kills deaf ranks, their daemons and our supervisors, and nothing is left in doubt."""
    started = begun(hpc, "deaf daemon sleep=300")
    slurm.sh(f"scancel --name={started.run_id}")
    done = started.wait()
    assert done.code == 1, done
    assert "ended by Slurm: it was cancelled" in done.err
    assert not any(host.processes("RUNNER_RUN_ID") for host in slurm.nodes.values())


def test_accounts_that_cannot_be_used_are_named(slurm: Slurm, hpc: Launcher) -> None:
    """sbatch refuses an unknown one; a job of a spent one waits, perhaps for ever."""
    done = hpc.run_ranks("print=hi", HPC, "cluster.slurm.account=nope")
    assert (done.code, "Invalid account" in done.err) == (3, True), done
    started = hpc.start(HPC, *hpc.rank_overrides("print=hi"), "cluster.slurm.account=spent")
    started.until(lambda: "its account or QOS has used up its time" in started.err, "the reason")
    started.send()
    assert started.wait().code == 130
    assert not slurm.jobs()
