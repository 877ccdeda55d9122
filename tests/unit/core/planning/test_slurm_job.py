"""Slurm jobs: the batch script, and what Slurm says of a job."""

from __future__ import annotations

import re
import shlex
import subprocess

from runner.core.planning.slurm_job import Job, batch_script, read_job
from runner.core.spec import Cluster, SlurmSpec, Spec

FOLDER = """/data/a "b" o'c $HOME/100%"""
EVERY_OPTION = SlurmSpec(
    partition="gpu,long",
    account="acme",
    time="1-12:00:00",
    nodes="2-4",
    nnodes=4,
    requeue=True,
    signal_before=180,
    extra=("--exclusive", "--mail-user=ada o'hara@example.com"),
)


def script(slurm: SlurmSpec) -> str:
    cluster = Cluster(slurm=slurm, gpus_per_node=8, exclude=("n3", "n[5-7]"))
    spec = Spec(run_id="r", cluster=cluster)
    return batch_script(spec, slurm, FOLDER, "/home/ada", ["python3", "-m", "runner", "a b"])


def test_words_of_a_user_stay_words() -> None:
    """Whatever is in them; options come first, and the launch takes the place of the script."""
    text = script(EVERY_OPTION)
    checked = subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, b"")
    lines = re.findall(r"^#SBATCH (.+)$", text, re.MULTILINE)
    assert [shlex.split(line) for line in lines] == [
        ["--job-name=r"],
        ["--nodes=2-4"],
        ["--partition=gpu,long"],
        ["--account=acme"],
        ["--time=1-12:00:00"],
        ["--exclude=n3,n[5-7]"],
        ["--gpus-per-node=8"],
        ["--signal=B:USR1@180"],
        ["--no-kill"],
        ["--requeue"],
        ["--open-mode=append"],
        [f"--output={FOLDER}%/job.out"],
        [f"--error={FOLDER}%/job.err"],
        ["--exclusive"],
        ["--mail-user=ada o'hara@example.com"],
    ]
    head, *rest = text.splitlines()
    assert head == "#!/bin/bash"
    assert rest[len(lines) :] == ["cd /home/ada || exit 3", "exec python3 -m runner 'a b'"]


def test_a_job_of_a_fixed_size() -> None:
    """Its site may not start it again by itself, and ends it with a node of it."""
    assert "--ntasks-per-node=1" in script(SlurmSpec(nodes="2"))
    assert "--no-requeue" in script(SlurmSpec(nodes="2"))
    assert "--no-kill" not in script(SlurmSpec(nodes="2"))


LINE = (
    "JobId=7 JobName=r JobState=PENDING Reason=QOSGrpNodeLimit StartTime=2026-11-25T21:56:07 "
    "PreemptTime=None NodeList=(null) ExitCode=0:0 Command=/a b"
)


def test_how_a_job_stands_is_told_in_words() -> None:
    """With Slurm's own reason."""
    job = read_job("7", LINE)
    assert job.text == "job 7 is pending (QOSGrpNodeLimit), may start 2026-11-25 21:56:07"
    assert (job.is_queued, job.has_ended, job.why_ended()) == (True, False, "")


def test_why_slurm_ends_a_job() -> None:
    """While it does, only slurmstepd says so; a grace after a preemption is known earlier."""
    told = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026 DUE TO TIME LIMIT ***"
    assert Job("7", "COMPLETING").why_ended(told) == "it reached its time limit"
    assert Job("7", "COMPLETING").why_ended("") == "it was cancelled"
    assert Job("7", "RUNNING").why_ended(told) == ""
    line = LINE.replace("PENDING", "RUNNING").replace("PreemptTime=None", "PreemptTime=2026-11-25")
    assert "higher priority" in read_job("7", line).why_ended()
