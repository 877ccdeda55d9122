"""Schema of what a job asks of Slurm, where Slurm starts the supervisors."""

# ruff: noqa: RUF009 (`doc` makes a field, as `dataclasses.field` does)

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Any

from runner.config.schema.fields import NULLABLE_POSITIVE, TEXT, TEXTS, doc
from runner.config.validation import Kind, Validator

_TIMES = r"\d+|\d+:\d\d(:\d\d)?|\d+-\d\d?(:\d\d){0,2}"


def _time(validator: Validator, where: str, value: object) -> str:
    """Read a time limit as sbatch takes it; null is "".

    YAML reads 2:30:00 without quotes as 9000, which would be minutes: so no number is taken.
    """
    if value is None or (isinstance(value, str) and re.fullmatch(_TIMES, value)):
        return value or ""
    hint = 'in quotes, since YAML takes 2:30:00 for a number; "90" is 90 minutes'
    message = f"must be a text such as '2:30:00' or '1-12:00:00', not {value!r}"
    validator.add(where, message, hint)
    return ""


def _memory(validator: Validator, where: str, value: object) -> str:
    """Read an amount of memory as sbatch takes it; null is ""."""
    text = value if isinstance(value, str) else ""
    if value is not None and not re.fullmatch(r"[1-9]\d*[KMGT]", text):
        validator.add(where, f"must be a number with K, M, G or T such as 8G, not {value!r}")
    return text


def _signal(validator: Validator, where: str, value: object) -> str:
    """Read the name of a signal; null is SIGUSR1."""
    name = "SIGUSR1" if value is None else str(value)
    if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
        validator.add(where, f"{name} is no signal that a program can handle", "such as SIGUSR2")
    return name


SIGNAL = Kind("name of a signal such as SIGUSR1", _signal)
TIME = Kind('text such as "2:30:00" or "1-12:00:00", or null', _time)
MEMORY = Kind("number with K, M, G or T such as 8G, or null", _memory)


@dataclass
class SlurmConfig:
    """What a job asks for, large on purpose: sbatch's options; null leaves one to the site."""

    partition: str | None = doc("the partition, or several with commas", TEXT)
    account: str | None = doc("the account that pays", TEXT)
    qos: str | None = doc("the quality of service", TEXT)
    time: Any = doc("the time limit; null: the partition's default", TIME)
    constraint: str | None = doc("features of the nodes, such as a100", TEXT)
    nodelist: str | None = doc("nodes that the job must get, among others", TEXT)
    reservation: str | None = doc("the reservation to run in", TEXT)
    licenses: str | None = doc("licences, such as foo:4", TEXT)
    gres: str | None = doc(
        "generic resources of each node, such as gpu:a100:4, in place of gpus_per_node", TEXT
    )
    cpus_per_rank: int | None = doc("cores for each rank", NULLABLE_POSITIVE)
    mem_per_rank: str | None = doc("memory for each rank", MEMORY)
    signal: str = doc("what ranks get before the time limit", SIGNAL, "SIGUSR1")
    signal_before: int | None = doc(
        "how many seconds before it, about: Slurm may be a minute early; null: never",
        NULLABLE_POSITIVE,
    )
    requeue: bool = doc(
        "start the job again after that signal, a preemption or the loss of a node, as a new "
        "attempt of the run",
        *("true or false", False),
    )
    srun: Any = doc("more options of srun, such as [--container-image=IMAGE]", TEXTS, list)
    extra: Any = doc("more options of sbatch, such as [--exclusive]", TEXTS, list)
