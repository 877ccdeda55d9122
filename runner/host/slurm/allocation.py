"""Run in an allocation of its user: its script runs on this machine, and the run is a step."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import replace
from typing import Generator

from runner.core.model.slurm import JobStatus
from runner.core.protocol.paths import JobPaths
from runner.host.process import procfs
from runner.host.process.event_loop import pause
from runner.host.slurm import commands
from runner.host.slurm.job_folder import last_start
from runner.host.storage.run_folder import write_atomic

STEP_S = 0.5
"""How long after the end of its srun Slurm may still make a step."""


def start_script(paths: JobPaths) -> None:
    """Run the script of a run here, in the allocation that this shell has; it outlives us."""
    with open(paths.log, "ab") as log:
        process = subprocess.Popen(
            ["/bin/bash", paths.script],
            cwd=paths.root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    write_atomic(paths.process, f"{process.pid} {procfs.start_ticks_of(process.pid)}")


def step_status(paths: JobPaths, allocation: JobStatus) -> Generator[None, None, JobStatus]:
    """Return how a run stands in an allocation: it is over once its step has ended."""
    if _script_pid(paths):
        return allocation
    steps, problem = yield from commands.steps(allocation.job_id, os.path.basename(paths.run))
    if problem:
        return JobStatus(allocation.job_id, problem=problem)
    if steps:
        return allocation
    if os.path.exists(paths.cancelled):
        return replace(allocation, state="CANCELLED")
    if procfs.read_text(paths.process) or procfs.read_text(last_start(paths).step):
        return replace(allocation, state="COMPLETED")
    return allocation  # its script is only just started


def _script_pid(paths: JobPaths) -> int:
    """Return the process of a script that runs here, in an allocation; 0 for none."""
    pid, _, ticks = procfs.read_text(paths.process).partition(" ")
    is_alive = pid.isdigit() and procfs.start_ticks_of(int(pid)) == int(ticks or -1)
    return int(pid) if is_alive else 0


def cancel_step(paths: JobPaths, job_id: str) -> Generator[None, None, str]:
    """End the script and the step of a run; return Slurm's refusal: it may have ended."""
    if pid := _script_pid(paths):
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        yield from pause(STEP_S)
    steps, problem = yield from commands.steps(job_id, os.path.basename(paths.run))
    for step in steps:
        problem = (yield from commands.run(["scancel", step])).problem or problem
    return problem
