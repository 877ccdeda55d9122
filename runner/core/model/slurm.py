"""Slurm: what a job asks for, what it brings to its nodes, and what the controller says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Tuple

ENDED_STATES = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
)
"""The states of a job that is over, by squeue(1), "JOB STATE CODES"."""

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


@dataclass(frozen=True)
class SlurmSpec:
    """What a job asks of Slurm, a field for each option; "" and None leave it to Slurm."""

    nnodes: int = 1  # the most
    partition: str = ""
    account: str = ""
    qos: str = ""
    time: str = ""  # as sbatch takes it
    constraint: str = ""
    nodelist: str = ""
    exclude: str = ""
    reservation: str = ""
    licenses: str = ""
    gres: str = ""
    cpus_per_rank: Optional[int] = None
    mem_per_rank: str = ""  # a number with K, M, G or T
    extra: Tuple[str, ...] = ()  # more options of sbatch, as words


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

    @property
    def has_ended(self) -> bool:
        """Whether the job is over."""
        return self.state in ENDED_STATES
