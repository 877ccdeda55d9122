"""The batch script of a job, run by bash with programs in place of Slurm's."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.core.model.slurm import SlurmSpec
from runner.core.model.spec import Node
from runner.core.planning.batch_script import batch_script
from runner.core.protocol.paths import JobPaths
from tests.golden.builders import RUN_ID, spec
from tests.lab.waiting import wait_until

PROGRAMS = {
    "srun": 'echo "$@" >"$OUT/srun"; while ! [ -e "$OUT/over" ]; do sleep 0.01; done',
    "scontrol": (
        'case "$1 $2" in "show hostnames") printf "n1\\nn2\\nn3\\n" ;; '
        '"-o show") cat "$OUT/job" ;; *) echo "$@" >"$OUT/requeued" ;; esac'
    ),
    "sleep": 'if [ "$1" != 60 ]; then exec /bin/sleep "$@"; fi',
    "python": 'cat >"$OUT/code"; echo "$@" >"$OUT/verdict"; printf "$STOPPED"; exit "${CODE:-7}"',
}
"""What is run in place of Slurm's programs, and of ours."""

NONCE = "0f1e2d3c"


class Job:
    """The folder of a job, and its script."""

    def __init__(self, folder: Path, slurm: SlurmSpec) -> None:
        self.out, self.paths = folder / "out", JobPaths(str(folder), RUN_ID)
        self._programs = folder / "bin"
        self._scripts: list[subprocess.Popen[str]] = []
        self.out.mkdir()
        self._programs.mkdir()
        (self.out / "job").write_text("JobState=RUNNING Reason=None PreemptTime=None\n")
        for name, text in PROGRAMS.items():
            file = self._programs / name
            file.write_text(f"#!/bin/sh\n{text}\n")
            file.chmod(0o755)
        Path(self.paths.root).mkdir(parents=True)
        Path(self.paths.nonce).write_text(NONCE)
        Path(self.paths.code).write_bytes(b"our code")
        Path(self.paths.secrets).write_text("{}")
        digest = hashlib.sha256(b"our code").hexdigest()
        asked = spec(Node("login", "hpc"), slurm=slurm)
        self._text = batch_script(asked, str(folder), "python", NONCE, digest)

    def start(self, **environ: str) -> subprocess.Popen[str]:
        """Run the script until it has started the step, or has ended."""
        path = f"{self._programs}:{os.environ['PATH']}"
        script = subprocess.Popen(
            ["bash", "-c", self._text],
            env={"PATH": path, "OUT": str(self.out), "SLURM_JOB_ID": "7", **environ},
            stderr=subprocess.PIPE,
            text=True,
        )
        self._scripts.append(script)
        wait_until(lambda: self.said("srun") or script.poll() is not None, "the step")
        return script

    def close(self) -> None:
        """End whatever a test has left."""
        for script in self._scripts:
            self.end(script)

    def said(self, name: str) -> str:
        """What a program has written there, "" for nothing."""
        file = self.out / name
        return file.read_text() if file.exists() else ""

    def end(self, script: subprocess.Popen[str]) -> int:
        """End the step; return the code of the job."""
        (self.out / "over").touch()
        with script:
            return script.wait()

    def await_commands(self, node: str) -> None:
        """Wait until a node is told something."""
        wait_until(lambda: self.commands(node), f"a command to {node}")

    def commands(self, node: str) -> str:
        """The commands to a node, at the first start."""
        return Path(self.paths.start(0).commands(node)).read_text()


JobOf = Callable[[SlurmSpec], Job]


@pytest.fixture
def job_of(tmp_path: Path) -> Iterator[JobOf]:
    """Makes the folder of a job."""
    made: list[Job] = []

    def make(slurm: SlurmSpec) -> Job:
        made.append(Job(tmp_path, slurm))
        return made[-1]

    yield make
    for job in made:
        job.close()


def test_the_step_has_its_files_first(job_of: JobOf) -> None:
    """On as many nodes as were asked for; the verdict is the code of the job."""
    job = job_of(SlurmSpec(nnodes=2))
    script = job.start()
    start = job.paths.start(0)
    assert Path(start.nodes).read_text() == "n1\nn2\n"
    assert Path(job.paths.last_start).read_text() == "0\n"
    for file in (start.facts("n1"), start.begun("n2"), start.commands("n2"), start.orders):
        assert Path(file).read_bytes() == b""
    assert not Path(start.facts("n3")).exists()
    words = job.said("srun")
    assert "--nodes=2 --nodelist=n1,n2 " in words
    assert words.endswith(f"python slurm-task {job.paths.root} {NONCE}\n")
    assert "--cpus-per-task" not in words
    assert Path(job.paths.secrets).exists()
    assert job.end(script) == 7
    assert job.said("verdict") == f"slurm-verdict {job.paths.root}\n"
    assert job.said("code") == "our code"
    assert not Path(job.paths.secrets).exists()
    assert not job.said("requeued")


@pytest.mark.parametrize(
    ("gres", "cpus"),
    [
        ("gpu:a100-80g:4", 24),
        ("nvme:1,gpu:4", 24),
        ("gpu:a100", 6),
        ("mygpu:4", 6),
    ],
)
def test_gpus_of_gres_are_ranks(gres: str, cpus: int) -> None:
    """Whatever their type is called, and whatever else is asked for."""
    asked = spec(Node("login", "hpc"), slurm=SlurmSpec(gres=gres, cpus_per_rank=6))
    lines = batch_script(asked, "/w", "python", NONCE, "").splitlines()
    assert f"#SBATCH --cpus-per-task={cpus}" in lines


def test_another_folder_is_no_place_to_start(job_of: JobOf) -> None:
    """On nodes that do not see the disk of the login node, or another one at its place."""
    job = job_of(SlurmSpec())
    Path(job.paths.nonce).write_text("another")
    script = job.start()
    assert "cluster.workdir must be on a disk of all nodes" in (script.communicate()[1] or "")
    assert (script.returncode, job.said("srun")) == (3, "")
    shutil.rmtree(job.paths.root)
    assert job.end(job.start()) == 3


def test_code_that_is_not_ours_is_not_run(job_of: JobOf) -> None:
    """The script has its digest."""
    job = job_of(SlurmSpec())
    Path(job.paths.code).write_bytes(b"other code")
    assert job.end(job.start()) == 3
    assert (job.said("srun"), job.said("verdict")) == ("", "")


def test_a_term_of_slurm_is_not_the_scripts(job_of: JobOf) -> None:
    """Every process of the job gets it: the script waits for the step, and judges the run."""
    job = job_of(SlurmSpec())
    script = job.start()
    for _ in range(3):
        script.send_signal(signal.SIGTERM)
    assert job.end(script) == 7


@pytest.mark.parametrize("requeue", [True, False])
def test_ranks_are_told_of_the_time_limit(job_of: JobOf, *, requeue: bool) -> None:
    """By the supervisors, once; then a job that is to start again does."""
    job = job_of(SlurmSpec(nnodes=2, signal_before_s=120, requeue=requeue))
    script = job.start()
    script.send_signal(signal.SIGUSR1)
    job.await_commands("n2")
    assert [job.commands(node) for node in ("n1", "n2")] == ['{"command": "signal_ranks"}\n'] * 2
    assert job.end(script) == (0 if requeue else 7)  # of sleep
    assert job.said("requeued") == ("requeue 7\n" if requeue else "")


@pytest.mark.parametrize(
    ("code", "stopped", "is_limited", "starts_again"),
    [
        ("4", "", False, True),
        ("0", "", True, True),
        ("130", "stopped", True, False),
        ("130", "stopped", False, False),
    ],
)
def test_a_run_that_has_lost_a_node_starts_again(
    job_of: JobOf, code: str, stopped: str, *, is_limited: bool, starts_again: bool
) -> None:
    """By its exit code, which is the job's; not one that a user stopped, limit or not."""
    job = job_of(SlurmSpec(requeue=True, signal_before_s=60))
    script = job.start(CODE=code, STOPPED=stopped)
    if is_limited:
        script.send_signal(signal.SIGUSR1)
        job.await_commands("n1")
    assert job.end(script) == (0 if starts_again else int(code))
    assert bool(job.said("requeued")) == starts_again
    assert Path(job.paths.secrets).exists() == starts_again
