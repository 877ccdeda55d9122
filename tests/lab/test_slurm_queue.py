"""What happens to a job before its run begins, and between two starts of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.lab.launching import Launcher
from tests.lab.slurm import EXCLUSIVE, HPC, Slurm, begun, ended
from tests.lab.waiting import wait_until

pytestmark = pytest.mark.slurm


def test_connection_lost_in_the_queue(slurm: Slurm, hpc: Launcher) -> None:
    """It is opened again: a job may wait for days, and its user's network does not last so long."""
    first = begun(hpc, "sleep=300", "cluster.nodes=4", EXCLUSIVE, "detach=true")
    waits = hpc.start(HPC, *hpc.rank_overrides("print=hi"), EXCLUSIVE)
    waits.until(lambda: "is pending" in waits.err, "the job to wait")
    agents = [p.pid for p in slurm.login.processes() if f"runner {waits.run_id}" in p.cmdline]
    assert agents
    slurm.sh(f"kill -9 {' '.join(map(str, agents))}", user="root")
    waits.until(lambda: "connecting to it again" in waits.err, "the loss to be noticed")
    assert ended(hpc, "stop", first.run_id).code == 0
    done = waits.wait(60)
    assert done.code == 0, done
    assert done.out.count("hi\n") == 2


def test_job_that_another_cancels(slurm: Slurm, hpc: Launcher) -> None:
    """It is told at once, and nothing secret is left."""
    hpc.env["TOKEN"] = "tell-nobody"
    begun(hpc, "sleep=300", "cluster.nodes=4", EXCLUSIVE, "detach=true")
    waits = hpc.start(HPC, *hpc.rank_overrides("print=hi"), EXCLUSIVE, "cluster.secrets=[TOKEN]")
    waits.until(lambda: "is pending" in waits.err, "the job to wait")
    run_id = waits.run_id
    slurm.sh(f"scancel --name={run_id}")
    cancelled_at = time.monotonic()
    done = waits.wait(60)
    assert time.monotonic() - cancelled_at < 40  # no node has begun: there is no disk to wait for
    assert (done.code, "it was cancelled" in done.err) == (3, True), done
    assert not slurm.sh(f"grep -rl tell-nobody .runner/runs/{run_id} || true")


def test_run_is_known_before_it_begins(slurm: Slurm, hpc: Launcher) -> None:
    """Also while its nodes do their setup."""
    setup = "cluster.setup=[sleep 20]"
    started = hpc.start(HPC, *hpc.rank_overrides("print=hi"), setup, "detach=true")
    assert started.wait().code == 0
    run_id = started.run_id
    assert (started.folder / "origins.json").exists()
    wait_until(lambda: slurm.jobs("%T") == ["RUNNING"], "the job to start")
    nodes = f"ls .runner/runs/{run_id}/.slurm/start_0/nodes"
    wait_until(lambda: slurm.sh(nodes, check=False), "its script to begin")
    assert f"{run_id} " in hpc("ps").out
    stopped = hpc("stop", "--run", run_id)
    assert stopped.code == 0, stopped
    assert not slurm.jobs()


def test_ctrl_c_as_a_run_begins(slurm: Slurm, hpc: Launcher) -> None:
    """It stops the run, which the launch does not follow yet."""
    started = hpc.start(HPC, *hpc.rank_overrides("print=began", "sleep=300"))
    wait_until(lambda: started.run_id, "the run's id")
    note = f"cat .runner/runs/{started.run_id}/.slurm/start_0/node2.begun"
    wait_until(lambda: slurm.sh(note, check=False), "its nodes")
    started.send()
    done = started.wait(60)
    assert done.code == 130, done
    assert "nothing was started" not in done.err, done
    assert "first failure" not in done.err, done
    wait_until(lambda: not slurm.jobs(), "its script to end", 10)


def test_interrupted_submission(slurm: Slurm, hpc: Launcher, steps: Path) -> None:
    """Nothing is left of a job whose sbatch has not answered yet."""
    text = f'out=$($SBATCH "$@"); touch {steps}/took; sleep 300; echo "$out"'
    with slurm.wrapped_sbatch(steps, text):
        started = hpc.start(HPC, *hpc.rank_overrides("print=hi"))
        wait_until((steps / "took").exists, "Slurm to take the job")
        started.send()
        assert started.wait(60).code == 130
    wait_until(lambda: not slurm.jobs(), "the job to be cancelled")
    assert not slurm.sh("ls .runner/runs", check=False)


@pytest.mark.all
def test_lost_first_node_starts_the_job_again(slurm: Slurm, hpc: Launcher) -> None:
    """The next node asks for that, and speaks for the run; the launch waits for the next start."""
    started = begun(hpc, "sleep=300", "lost_s=4", "cluster.slurm.requeue=true")
    started.until_printed("began", 2)
    slurm.nodes["node1"].power_off()

    def is_again(words: str) -> bool:
        return words in started.err.partition("lost node1")[2]

    started.until(lambda: is_again("is pending") or is_again("attempt 2"), "the job to wait again")
    slurm.start_again(started.run_id)
    started.until(lambda: is_again("attempt 2"), "the next start")
    started.send()
    assert started.wait(60).code == 130
