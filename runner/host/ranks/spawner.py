"""Rank spawner: starts the ranks of one node as srun would start its tasks, without torchrun.

    PYTHON -I -S spawner.py COUNT FIRST_RANK SHIM [ARG...]

Each rank gets RANK and LOCAL_RANK, and what srun calls them (srun(1), "OUTPUT ENVIRONMENT
VARIABLES"). A signal is passed on to all of them. It ends when all have ended; one that failed
makes it fail, and who started it ends the others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Dict, List

FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(argv: List[str]) -> int:
    count = int(argv[0])
    first_rank = int(argv[1])
    ranks: List["subprocess.Popen[bytes]"] = []
    to_pass_on: List[int] = []

    def take(signum: int, _: object) -> None:
        to_pass_on.append(signum)
        pass_on()

    def pass_on() -> None:
        while to_pass_on and len(ranks) == count:  # a rank that runs may not be listed yet
            signum = to_pass_on.pop(0)
            for rank in ranks:
                rank.send_signal(signum)

    for signum in FORWARDED_SIGNALS:
        signal.signal(signum, take)
    for local_rank in range(count):
        variables = rank_variables(first_rank + local_rank, local_rank, count)
        ranks.append(subprocess.Popen(argv[2:], env={**os.environ, **variables}))
    pass_on()
    codes = [rank.wait() for rank in ranks]
    return max(map(abs, codes))


def rank_variables(rank: int, local_rank: int, count: int) -> Dict[str, str]:
    world_size = os.environ["WORLD_SIZE"]
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(count),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NODEID": os.environ["NODE_RANK"],
        "SLURM_NTASKS": world_size,
        "SLURM_NPROCS": world_size,
        "SLURM_NTASKS_PER_NODE": str(count),
        "SLURM_TASKS_PER_NODE": f"{count}(x{os.environ['NNODES']})",
    }
    if cores := os.environ.get("SLURM_CPUS_PER_TASK"):  # of the one task that is the node's
        variables["SLURM_CPUS_PER_TASK"] = str(max(1, int(cores) // count))
    return variables


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
