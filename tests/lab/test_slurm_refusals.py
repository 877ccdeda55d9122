"""What Slurm, or a node of it, refuses: one message, and no job left behind."""

from __future__ import annotations

import sys

import pytest

from tests.lab.launching import Launcher
from tests.lab.slurm import HPC, Slurm

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("cluster.slurm.partition=nope", "Invalid partition"),
        ("cluster.slurm.constraint=nope", "Invalid feature specification"),
        ("cluster.slurm.reservation=nope", "reservation"),
        ("cluster.nodes=99", "Slurm would never start the job"),
        ("cluster.slurm.cpus_per_rank=99", "Slurm would never start the job"),
    ],
)
def test_what_cannot_be(word: str, message: str, slurm: Slurm, hpc: Launcher) -> None:
    """It is said in a few lines, with exit code 3."""
    done = hpc.run_ranks("print=hi", HPC, word)
    assert done.code == 3, done
    assert message in done.err, done
    assert "Traceback" not in done.err
    assert not slurm.jobs()


def test_no_sbatch(slurm: Slurm, hpc: Launcher) -> None:
    """A machine without Slurm's commands is no login node."""
    slurm.login.sh("mount --bind /dev/null /usr/bin/sbatch", user="root")
    try:
        done = hpc.run_ranks("print=hi", HPC)
    finally:
        slurm.login.sh("umount /usr/bin/sbatch", user="root")
    assert done.code == 3, done
    assert "there is no sbatch on the PATH of login" in done.err


def test_silent_controller(slurm: Slurm, hpc: Launcher) -> None:
    """slurmctld is down."""
    slurm.kill(slurm.login, "slurmctld")
    done = hpc.run_ranks("print=hi", HPC)
    assert done.code == 3, done
    assert "Slurm does not answer" in done.err
    assert slurm.sh("ls .runner/runs", check=False) == ""


def test_workdir_that_nodes_do_not_see(slurm: Slurm, hpc: Launcher) -> None:
    """/run is each machine's own."""
    slurm.login.sh("mkdir -p /run/own && chown alice /run/own", user="root")
    done = hpc.run_ranks("print=hi", HPC, "cluster.workdir=/run/own/work")
    assert done.code == 3, done
    assert "cluster.workdir must be on a disk of all nodes" in done.err
    assert not slurm.jobs()


def test_python_that_nodes_lack(slurm: Slurm, hpc: Launcher) -> None:
    """It is on the login node alone."""
    slurm.login.sh(f"ln -s {sys.executable} /run/python", user="root")
    done = hpc.run_ranks("print=hi", HPC, "cluster.python=/run/python")
    assert done.code == 3, done
    assert "/run/python: No such file or directory" in done.err
    assert not slurm.jobs()


def test_dry_run_submits_nothing(slurm: Slurm, hpc: Launcher) -> None:
    """It prints the script that a launch submits."""
    done = hpc.run_ranks("print=hi", HPC, "dry_run=true")
    assert done.code == 0, done
    assert done.out.startswith("#!/bin/bash\n#SBATCH --job-name=")
    assert "/home/alice/.runner/runs/" in done.out
    assert slurm.sh("ls .runner 2>/dev/null; squeue -h -a") == ""
