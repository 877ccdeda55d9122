"""Slurm job of a run: the batch script that starts the launch, and how the job stands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterator, Mapping, Sequence

from runner.core import shell
from runner.core.spec import SlurmSpec, Spec

OUT_FILE = "job.out"
ERR_FILE = "job.err"
"""What the launch in the job prints, in the record of its run."""

ENDED_STATES = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
    "UNKNOWN",
)
"""The states of a job that is over, by squeue(1); UNKNOWN is ours: Slurm has forgotten it."""

ENDS: Dict[str, str] = {
    "OUT_OF_MEMORY": "it took more memory than it had asked for",
    "NODE_FAIL": "a node of it failed",
    "BOOT_FAIL": "a node of it did not boot",
    "TIMEOUT": "it reached its time limit",
    "DEADLINE": "it reached its deadline",
    "PREEMPTED": "a job with a higher priority took its nodes",
    "CANCELLED": "it was cancelled",
}
"""Why Slurm ended a job, by its state."""

ENDINGS: Dict[str, str] = {
    "TIME LIMIT": ENDS["TIMEOUT"],
    "PREEMPTION": ENDS["PREEMPTED"],
    "NODE FAILURE": ENDS["NODE_FAIL"],
    "JOB REQUEUE": "it is to start again",
}
"""The same, by what slurmstepd writes as it ends one."""

IMPOSSIBLE_REASONS: Dict[str, str] = {
    "PartitionConfig": "no partition has what it asks for",
    "PartitionNodeLimit": "its partition does not give a job that many nodes",
    "PartitionTimeLimit": "its partition does not give a job that much time",
    "BadConstraints": "no node has what it asks for",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
}
"""Why a job never starts, by squeue(1): Slurm would keep it for ever."""

LIMIT = re.compile(r"(Assoc|QOS)(Grp|Max)\w+")
"""Why a job waits that is more than its account or QOS may have, now or ever."""


@dataclass(frozen=True)
class Job:
    """A job as Slurm's controller describes it; "" is unknown."""

    job_id: str
    state: str = ""  # such as PENDING, by squeue(1)
    reason: str = ""
    start: str = ""  # when it is expected to start, or has
    nodes: str = ""
    exit_code: str = ""  # as scontrol prints it, CODE:SIGNAL
    is_preempted: bool = False
    problem: str = ""  # why the controller could not be asked

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is left, as Slurm says."""
        return self.state in ENDED_STATES

    @property
    def is_queued(self) -> bool:
        return self.state in ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD")

    def why_ended(self, words: str = "") -> str:
        """Return why Slurm ends it, or has; "" where it does not.

        `words`: what Slurm has written to its standard error.
        """
        if self.is_preempted:
            return ENDS["PREEMPTED"]
        if self.state != "COMPLETING":
            return ENDS.get(self.state, "")
        told = [text for text in ENDINGS if f"DUE TO {text} ***" in words]
        return ENDINGS[told[0]] if told else ENDS["CANCELLED"]

    @property
    def text(self) -> str:
        """How it stands, in a few words."""
        if self.problem:
            return f"job {self.job_id}: Slurm does not answer: {self.problem}"
        if self.is_queued:
            reason = f" ({self.reason})" if self.reason else ""
            limit = ": a limit of its account or QOS" if LIMIT.fullmatch(self.reason) else ""
            start = f", may start {self.start.replace('T', ' ')}" if self.start else ""
            return f"job {self.job_id} is {self.state.lower()}{reason}{limit}{start}"
        if self.state == "RUNNING":
            return f"job {self.job_id} has its nodes: {self.nodes}"
        if why := ENDS.get(self.state):
            return f"job {self.job_id}: {why}"
        if self.state == "UNKNOWN":
            return f"job {self.job_id} is over; Slurm has forgotten how it ended"
        return f"job {self.job_id} is {self.state.lower()}"


def read_job(job_id: str, line: str, now: str) -> Job:
    """Return the job that a line of `scontrol --oneliner show job` describes; `now` as it does."""
    fields: Dict[str, str] = {}
    for word in line.split():
        name, _, value = word.partition("=")
        if value not in ("None", "N/A", "(null)", "Unknown"):
            fields.setdefault(name, value)
    state = fields.get("JobState", "")
    return Job(
        job_id=job_id,
        state=state,
        reason=fields.get("Reason", ""),
        start=fields.get("StartTime", ""),
        nodes=fields.get("NodeList", ""),
        exit_code=fields.get("ExitCode", ""),
        is_preempted=fields.get("PreemptTime", now) < now,
    )


def batch_script(spec: Spec, slurm: SlurmSpec, folder: str, cwd: str, words: Sequence[str]) -> str:
    """Return the script that sbatch takes: it starts the launch, by `words`, on the first node.

    `folder` is the record of the run. The launch takes the place of the script, so that it gets
    the signals that Slurm sends to that alone.
    """
    options = [f"#SBATCH {shell.quote(option)}" for option in _options(spec, slurm, folder)]
    steps = [f"cd {shell.quote(cwd)} || exit 3", f"exec {shell.line(words)}"]
    return "\n".join(["#!/bin/bash", *options, *steps, ""])


def _options(spec: Spec, slurm: SlurmSpec, folder: str) -> Iterator[str]:
    """Yield the options of sbatch."""
    place = folder.replace("%", "%%")
    yield f"--job-name={spec.run_id}"
    yield f"--nodes={slurm.nodes}"
    if "-" not in slurm.nodes:  # of a range, Slurm would give the fewest
        yield "--ntasks-per-node=1"
    asked = {
        "partition": slurm.partition,
        "account": slurm.account,
        "time": slurm.time,
        "exclude": ",".join(spec.cluster.exclude),
        "gpus-per-node": spec.cluster.gpus_per_node,
    }
    for name, value in asked.items():
        if value:
            yield f"--{name}={value}"
    if slurm.signal_before:
        yield f"--signal=B:USR1@{slurm.signal_before}"
    if spec.relaunch.max or "-" in slurm.nodes:  # the run may go on without a node
        yield "--no-kill"
    yield "--requeue" if slurm.requeue else "--no-requeue"
    yield "--open-mode=append"
    yield f"--output={place}/{OUT_FILE}"
    yield f"--error={place}/{ERR_FILE}"
    yield "--export=ALL"
    yield from slurm.extra


def srun_words(node: str, slurm: SlurmSpec, environ: Mapping[str, str]) -> Sequence[str]:
    """Return the words that start what follows them on a node of a job, with all that it has there.

    What describes the job, and a step of one node does not have, is passed on from `environ`.
    """
    options = {
        "jobid": slurm.job_id,
        "nodelist": node,
        "nodes": "1",
        "ntasks": "1",
        "mem": "0",
        "export": "ALL",
        "mpi": "none",
        "kill-on-bad-exit": "0",
    }
    words = ["srun", "--overlap", "--unbuffered", "--no-kill", "--quiet"]
    if node in slurm.cores:
        options["cpus-per-task"] = f"{slurm.cores[node]}"
    words += [f"--{name}={value}" for name, value in options.items()]
    names = ("SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_NODELIST")
    of_job = [f"{name}={environ[name]}" for name in names if name in environ]
    return [*words, *slurm.srun, "env", *of_job]
