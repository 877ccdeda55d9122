"""Slurm: what a job asks for, what it brings to its nodes, and what the controller says of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict

LOGIN = "login"
"""The name of the login node."""

UNKNOWN = "UNKNOWN"
"""The state of a job that Slurm has forgotten: it does so some minutes after its end."""

SUBMITTING = "SUBMITTING"
"""The state of a job of which it is not known yet whether Slurm has taken it."""

ENDED_STATES = (
    *(UNKNOWN, "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
)
"""The states of a job that is over, by squeue(1), "JOB STATE CODES"."""

UNSEEN = "{} is not seen there; cluster.workdir must be on a disk of all nodes"
"""What a node says that does not see the folder of a run."""

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

IMPOSSIBLE_REASONS: Dict[str, str] = {
    "PartitionConfig": "no partition has what it asks for",
    "PartitionNodeLimit": "its partition does not give a job that many nodes",
    "PartitionTimeLimit": "its partition does not give a job that much time",
    "BadConstraints": "no node has what it asks for",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "QOSMaxWallDurationPerJobLimit": "its QOS does not give a job that much time",
    "QOSMaxNodePerJobLimit": "its QOS does not give a job that many nodes",
    "QOSMaxCpuPerJobLimit": "its QOS does not give a job that many cores",
    "AssocMaxNodePerJobLimit": "its account does not give a job that many nodes",
    "AssocMaxWallDurationPerJobLimit": "its account does not give a job that much time",
    "AssocMaxCpuPerJobLimit": "its account does not give a job that many cores",
}
"""Why a job never starts, by squeue(1), "JOB REASON CODES": Slurm would keep it for ever."""


SPENT = re.compile(r"(Assoc|QOS)(Grp|Max)\w*(Minutes|RunMinutes)\w*")
"""Why a job waits whose account or QOS has used up the time that it has."""


@dataclass(frozen=True)
class JobStatus:
    """A job as Slurm's controller describes it; "" is unknown."""

    job_id: str = ""
    state: str = ""  # such as PENDING, by squeue(1)
    reason: str = ""
    start: str = ""  # when it is expected to start, or has
    nodes: str = ""
    exit_code: str = ""  # as scontrol prints it, CODE:SIGNAL
    problem: str = ""  # why the controller could not be asked
    name: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether the job is over."""
        return self.state in ENDED_STATES

    @property
    def is_impossible(self) -> bool:
        """Whether it waits for what it will never get."""
        return self.state == "PENDING" and self.reason in IMPOSSIBLE_REASONS

    @property
    def is_queued(self) -> bool:
        """Whether it waits for its nodes."""
        return self.state in ("PENDING", "CONFIGURING", "REQUEUED", SUBMITTING)

    @property
    def queued_text(self) -> str:
        """How it waits, in a few words."""
        reason = f" ({self.reason})" if self.reason else ""
        start = f", may start {self.start.replace('T', ' ')}" if self.start else ""
        spent = ": its account or QOS has used up its time" if SPENT.fullmatch(self.reason) else ""
        return f"{self.state.lower()}{reason}{spent}{start}"

    @property
    def text(self) -> str:
        """How it stands, in a few words."""
        job = f"job {self.job_id}" if self.job_id else "its job"
        if self.problem:
            return f"{job}: Slurm does not answer: {self.problem}"
        if self.is_queued:
            return f"{job} is {self.queued_text}"
        if self.state == "RUNNING":
            return f"{job} has its nodes: {self.nodes}"
        why = ENDS.get(self.state)
        return f"{job}: {why}" if why else f"{job} is {self.state.lower() or 'unknown to Slurm'}"
