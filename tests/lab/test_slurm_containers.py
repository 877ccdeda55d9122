"""Runs of jobs in containers of docker, which each node of the job starts as over SSH."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.lab.engines import Daemon, daemons, overrides
from tests.lab.engines import missing as docker_missing
from tests.lab.lab import LabFactory
from tests.lab.launching import Controller, Launcher
from tests.lab.slurm import HPC, Slurm, slurm_lab
from tests.lab.slurm import missing as slurm_missing
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.containers, pytest.mark.slurm]


@pytest.fixture(scope="module")
def slurm(
    lab_factory_for_session: LabFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Slurm]:
    if reason := slurm_missing() or docker_missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    folder, nodes = tmp_path_factory.mktemp("slurm"), ("node1", "node2")
    with slurm_lab(lab_factory_for_session, folder, nodes) as slurm:
        yield slurm


@pytest.fixture(scope="module")
def docker(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Daemon]]:
    yield from daemons(slurm.lab, tmp_path_factory.mktemp("docker"))


def left(docker: dict[str, Daemon]) -> list[str]:
    return [name for daemon in docker.values() for name in daemon.containers()]


def test_run_in_containers(slurm: Slurm, docker: dict[str, Daemon], launcher: Launcher) -> None:
    """The first failure is told; neither a stop nor a scancel leaves a container."""
    slurm.write_cluster(launcher.conf)
    done = launcher.run_ranks("print=inside fail=1:7 sleep=60", HPC, *overrides())
    assert done.code == 1, done
    assert done.log("node2", 1) == "inside\n"
    assert "first failure: rank 1" in done.err, done
    started = begun_inside(docker, launcher)
    stopped = launcher("stop", "--run", started.run_id)
    assert stopped.code == 0, stopped
    wait_until(lambda: not slurm.jobs(), "the job to end", 20)
    assert not left(docker)
    # It does not reach what a daemon has started: the supervisors do.
    cancelled = begun_inside(docker, launcher)
    slurm.sh("scancel --user=alice")
    done = cancelled.wait()
    assert done.code == 1, done
    assert "first failure: ended by Slurm: it was cancelled" in done.err
    assert not left(docker)


def begun_inside(docker: dict[str, Daemon], launcher: Launcher) -> Controller:
    """Start deaf ranks in containers, and wait until they are on."""
    ranks = launcher.rank_overrides("deaf", "print=began", "sleep=300")
    started = launcher.start(HPC, *ranks, *overrides())
    started.until_printed("began", 2)
    assert docker["node1"].containers()
    return started
