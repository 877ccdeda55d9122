"""Slurm job of a run: the batch script that starts the launch, and how the job stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner.core import shell
from runner.core.spec import SlurmSpec, Spec

OUT_FILE = "job.out"
ERR_FILE = "job.err"
"""What the launch in the job prints, in the record of its run."""

SIZES_FILE = "job.sizes"
"""How much that is in the end: a shared disk may show it late."""

ENDS: dict[str, str] = {
    "BOOT_FAIL": "a node of it did not boot",
    "CANCELLED": "it was cancelled",
    "COMPLETED": "",
    "DEADLINE": "it reached its deadline",
    "FAILED": "",
    "NODE_FAIL": "a node of it failed",
    "OUT_OF_MEMORY": "it took more memory than it had asked for",
    "PREEMPTED": "a job with a higher priority took its nodes",
    "REVOKED": "",
    "TIMEOUT": "it reached its time limit",
    "UNKNOWN": "Slurm has forgotten how it ended",
}
"""Why Slurm ended a job, by the states of one that is over (squeue(1); UNKNOWN is ours)."""

REQUEUED = "it is to start again"

ENDINGS: dict[str, str] = {
    "TIME LIMIT": ENDS["TIMEOUT"],
    "PREEMPTION": ENDS["PREEMPTED"],
    "NODE FAILURE": ENDS["NODE_FAIL"],
    "JOB REQUEUE": REQUEUED,
}
"""The same, by what slurmstepd writes as it ends one."""


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
        return self.state in ENDS

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
        if self.problem:
            return f"job {self.job_id}: Slurm does not answer: {self.problem}"
        if self.is_queued:
            reason = f" ({self.reason})" if self.reason else ""
            start = f", may start {self.start.replace('T', ' ')}" if self.start else ""
            return f"job {self.job_id} is {self.state.lower()}{reason}{start}"
        if self.state == "RUNNING":
            return f"job {self.job_id} has its nodes: {self.nodes}"
        if why := ENDS.get(self.state):
            return f"job {self.job_id}: {why}"
        return f"job {self.job_id} is {self.state.lower()}"


def read_job(job_id: str, line: str) -> Job:
    """Return the job that a line of `scontrol --oneliner show job` describes."""
    fields: dict[str, str] = {}
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
        is_preempted="PreemptTime" in fields,
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
    yield from slurm.extra
