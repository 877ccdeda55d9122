"""Remote procedure calls between all ranks, by torch.distributed.rpc."""

import os

import torch
from torch.distributed import rpc


def add(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """What the others ask for."""
    return left + right


def main() -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    options = rpc.TensorPipeRpcBackendOptions(init_method="env://", rpc_timeout=30)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)  # type: ignore[no-untyped-call]
    peer = (rank + 1) % world_size
    answer = rpc.rpc_sync(f"worker{peer}", add, args=(torch.tensor(rank), torch.tensor(100)))
    print(f"worker{peer} told rank {rank}: {answer.item()}", flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main()
