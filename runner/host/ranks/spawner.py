"""Rank spawner: starts the ranks of one node as srun would start its tasks, without torchrun.

    PYTHON -I -S spawner.py COUNT FIRST_RANK SHIM [ARG...]

Each rank gets RANK and LOCAL_RANK, and what srun calls them (srun(1), "OUTPUT ENVIRONMENT
VARIABLES"), A signal is
passed on to all of them. It ends when all have ended, with the exit code of the one that failed
first: who started it ends the others.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from typing import Dict, List, NoReturn, Set

PR_SET_PDEATHSIG = 1
FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(argv: List[str]) -> NoReturn:
    """Start the ranks, and wait for them."""
    count = int(argv[0])
    first_rank = int(argv[1])
    program = argv[2:]
    running: Set[int] = set()

    def forward(signum: int, _: object) -> None:
        for pid in running:
            with suppress(OSError):  # it has ended
                os.kill(pid, signum)

    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)
    for signum in FORWARDED_SIGNALS:
        signal.signal(signum, forward)
    for local_rank in range(count):
        running.add(_start(program, rank_variables(first_rank + local_rank, local_rank, count)))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
    code = 0
    while running:
        pid, status = os.wait()
        running.discard(pid)
        if os.WIFSIGNALED(status):
            code = code or 128 + os.WTERMSIG(status)
        else:
            code = code or os.WEXITSTATUS(status)
    os._exit(code)


def rank_variables(rank: int, local_rank: int, count: int) -> Dict[str, str]:
    """Return the variables of one rank, beside those of its node."""
    nodes = os.environ.get("SLURM_NNODES", "1")
    world_size = os.environ["WORLD_SIZE"]
    cores = os.environ.get("SLURM_CPUS_PER_TASK", "")  # of the one task that is the node's
    of_cores = {"SLURM_CPUS_PER_TASK": str(max(1, int(cores) // count))} if cores else {}
    return {
        **of_cores,
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(count),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NTASKS": world_size,
        "SLURM_NPROCS": world_size,
        "SLURM_NTASKS_PER_NODE": str(count),
        "SLURM_STEP_NUM_TASKS": world_size,
        "SLURM_TASKS_PER_NODE": f"{count}(x{nodes})",
        "SLURM_STEP_TASKS_PER_NODE": f"{count}(x{nodes})",
        "SLURM_NODEID": os.environ["NODE_RANK"],
    }


def _start(program: List[str], variables: Dict[str, str]) -> int:
    """Start a rank, which ends with us; return its process."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        for signum in FORWARDED_SIGNALS:
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
        if os.getppid() == parent:
            os.execve(program[0], program, {**os.environ, **variables})
    except OSError as error:
        os.write(2, f"{program[0]}: {error.strerror}\n".encode())
    os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
