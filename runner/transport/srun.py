"""Slurm: its commands on this machine, each with a deadline, and srun as a way to nodes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from runner.core.errors import Problem
from runner.core.planning.slurm_job import Job, read_job
from runner.core.spec import Node
from runner.transport.endpoint import Kind, LoginFailed
from runner.transport.process import LocalTransport, ProcessChannel

LIMIT_S = 20.0
"""For an answer: without its controller, a command takes 9 s to say so."""

STEP = "srun --overlap --unbuffered --quiet --nodes=1 --ntasks=1 --mem=0 --mpi=none"
"""Starts one process that waits for no other step, and has all that the job has on its node."""

DESCRIBE_JOB = ("SLURM_JOB_N", "SLURM_NODELIST", "SLURM_NNODES", "SLURM_CPUS_PER_TASK")
"""How variables begin that describe the whole job, and that a step of one node has otherwise."""

OF_A_JOB = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SCANCEL_")
"""Variables of a job around this process, or of a site, that would change what a command does."""


def environ() -> dict[str, str]:
    """Return our environment without what an enclosing job has put into it."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or not name.startswith(OF_A_JOB)
    }


def ask(words: Sequence[str], text: str = "", limit_s: float = LIMIT_S) -> tuple[str, str]:
    """Return what a command of Slurm prints, and why it failed, in its own words, or ""."""
    try:
        done = subprocess.run(
            words,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            env=environ(),
            check=False,
        )
    except OSError as error:
        what = f"{words[0]} cannot be started on this machine ({error.strerror})"
        return "", f"{what}: is it a login node?"
    except subprocess.TimeoutExpired:
        return "", f"{words[0]} took more than {limit_s:g} s"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    problem = lines[-1] if lines else f"{words[0]} ended with exit code {done.returncode}"
    return done.stdout, problem if done.returncode else ""


def job_of(job_id: str) -> Job:
    line, problem = ask(["scontrol", "--oneliner", "show", "job", job_id])
    if "Invalid job id" in problem:
        return Job(job_id, "UNKNOWN")
    if problem:
        return Job(job_id, problem=problem)
    return read_job(job_id, line)


def cancel(job_id: str, *options: str) -> str:
    """Have Slurm end a job, or signal it; return its refusal, or ""."""
    return ask(["scancel", *options, job_id])[1]


class SrunTransport(LocalTransport):
    """Reaches the nodes of a job: each program is a step.

    The node that this process is on needs none. A job that is over has no nodes: what its run
    left, on the disk that they shared with this machine, is read here.
    """

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._job: Job | None = None

    def connect(self, node: Node) -> LocalTransport:
        is_inside = os.environ.get("SLURM_JOB_ID") == self._job_id
        if is_inside and os.environ.get("SLURMD_NODENAME") == node.name:
            return self
        self._job = self._job or job_of(self._job_id)
        if self._job.problem:
            raise LoginFailed(Kind.NO_SESSION, Problem(node.name, self._job.text))
        if self._job.has_ended or self._job.is_queued:
            return self
        return SrunConnection(self._job_id, node.name)


class SrunConnection(LocalTransport):
    def __init__(self, job_id: str, node: str) -> None:
        self._words = [*STEP.split(), f"--jobid={job_id}", f"--nodelist={node}"]

    def start(self, words: Sequence[str]) -> ProcessChannel:
        """Start a program; what srun says by itself goes to our standard error."""
        of_job = [f"{k}={v}" for k, v in os.environ.items() if k.startswith(DESCRIBE_JOB)]
        merged = ["/bin/sh", "-c", 'exec 2>&1; exec "$@"', "sh", *words]
        return ProcessChannel(
            [*self._words, "env", *of_job, *merged],
            stderr=2,
            environ=environ(),
            is_signalled=False,
        )
