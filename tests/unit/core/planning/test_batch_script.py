"""The batch script of a job, run by bash with programs in place of Slurm's."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.core.planning.batch_script import batch_script
from runner.core.protocol.paths import JobPaths
from runner.core.spec import Node, SlurmSpec
from tests.golden.builders import RUN_ID, spec
from tests.lab.waiting import wait_until

PROGRAMS = {
    "srun": 'echo "$@" >"$OUT/srun"; while ! [ -e "$OUT/over" ]; do sleep 0.01; done',
    "scontrol": 'if [ "$1 $2" = "show hostnames" ]; then printf "n1\\nn2\\nn3\\n"; fi',
    "python": 'echo "$@" >"$OUT/verdict"; exit 7',
}
"""What is run in place of Slurm's programs, and of ours."""

NONCE = "0f1e2d3c"


class Job:
    def __init__(self, folder: Path) -> None:
        self.out, self.paths = folder / "out", JobPaths(str(folder), RUN_ID)
        self._programs = folder / "bin"
        self._scripts: list[subprocess.Popen[str]] = []
        self.out.mkdir()
        self._programs.mkdir()
        for name, text in PROGRAMS.items():
            file = self._programs / name
            file.write_text(f"#!/bin/sh\n{text}\n")
            file.chmod(0o755)
        Path(self.paths.root).mkdir(parents=True)
        Path(self.paths.nonce).write_text(NONCE)
        Path(self.paths.code).write_bytes(b"our code")
        Path(self.paths.secrets).write_text("{}")
        digest = hashlib.sha256(b"our code").hexdigest()
        asked = spec(Node("login", "hpc"), slurm=SlurmSpec())
        self._text = batch_script(asked, str(folder), "python", NONCE, digest)

    def start(self) -> subprocess.Popen[str]:
        """Run the script until it has started the step, or has ended."""
        path = f"{self._programs}:{os.environ['PATH']}"
        script = subprocess.Popen(
            ["bash", "-c", self._text],
            env={"PATH": path, "OUT": str(self.out), "SLURM_JOB_ID": "7"},
            stderr=subprocess.PIPE,
            text=True,
        )
        self._scripts.append(script)
        wait_until(lambda: self.said("srun") or script.poll() is not None, "the step")
        return script

    def close(self) -> None:
        for script in self._scripts:
            self.end(script)

    def said(self, name: str) -> str:
        """What a program has written there, "" for nothing."""
        file = self.out / name
        return file.read_text() if file.exists() else ""

    def end(self, script: subprocess.Popen[str]) -> int:
        (self.out / "over").touch()
        with script:
            return script.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


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


def test_another_folder_is_no_place_to_start(job: Job) -> None:
    """On nodes that do not see the disk of the login node, or another one at its place."""
    Path(job.paths.nonce).write_text("another")
    script = job.start()
    assert "cluster.workdir must be on a disk of all nodes" in (script.communicate()[1] or "")
    assert (script.returncode, job.said("srun")) == (3, "")
    shutil.rmtree(job.paths.root)
    assert job.end(job.start()) == 3


def test_code_that_is_not_ours_is_not_run(job: Job) -> None:
    """The script has its digest."""
    Path(job.paths.code).write_bytes(b"other code")
    assert job.end(job.start()) == 3
    assert (job.said("srun"), job.said("verdict")) == ("", "")


def test_a_term_of_slurm_is_not_the_scripts(job: Job) -> None:
    """Every process of the job gets it: the script waits for the step, and judges the run."""
    script = job.start()
    for _ in range(3):
        script.send_signal(signal.SIGTERM)
    assert job.end(script) == 7
