"""One process per node that starts its own workers, as programs did before torchrun."""

import os
import sys

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

WORKERS = 2


def work(local_rank: int) -> None:
    """Meet the workers of all nodes on the port that the launcher kept free."""
    nodes, node = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    rank, world_size = node * WORKERS + local_rank, nodes * WORKERS
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=world_size)
    total = torch.tensor([rank])
    dist.all_reduce(total)
    print(f"worker {rank} of {world_size}: sum {total.item()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    print("arguments", sys.argv[1:], flush=True)
    # Forks have imported torch already.
    start_processes(work, nprocs=WORKERS, start_method="fork")  # type: ignore[no-untyped-call]
