"""Programs of the checks, each a function, by its name as the only argument."""

from __future__ import annotations

import json
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn


def devices() -> None:
    """Print the versions of torch, CUDA and NCCL, and the visible GPUs, as one line of JSON."""
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    has_nccl = gpus and dist.is_nccl_available()
    nccl = torch.cuda.nccl.version() if has_nccl else ()  # type: ignore[no-untyped-call]
    seen = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, nccl)),
        "names": [gpu.name for gpu in gpus],
        "uuids": [f"GPU-{gpu.uuid}" for gpu in gpus],
    }
    print(json.dumps(seen))


def out_of_memory() -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.empty(total + (1 << 30), dtype=torch.uint8, device="cuda")


def hold() -> None:
    """Take 2 GiB of the GPU, and keep them until the end by a signal."""
    held = torch.ones(2 << 30, dtype=torch.uint8, device="cuda")
    print(f"holding {len(held) >> 20} MiB", flush=True)  # which waits for no kernel
    signal.pause()


def join() -> torch.device:
    """Join the other ranks; return this one's device."""
    on_gpu = os.environ["DIST_BACKEND"] == "nccl"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(os.environ["DIST_BACKEND"])
    return device


def hang() -> None:
    """Wait for the other rank in a collective of one of two groups, and it in the other's."""
    number = torch.ones(1, device=join())
    groups = [dist.new_group(), dist.new_group()]
    for group in groups:
        dist.all_reduce(number, group=group)
    print(f"sum {number.item()}", flush=True)
    dist.all_reduce(number, group=groups[dist.get_rank() % 2])
    print(f"sum {number.item()}", flush=True)


class Squares(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index * index))


def usual() -> None:
    """Print, as one line of JSON, what a rank draws unseeded, and computes in the usual ways."""
    device = join()
    gpu = torch.device("cuda", 0)
    drawn = [torch.rand(2, device=where).tolist() for where in (gpu, "cpu")]
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 1)).to(gpu)
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = compiled(torch.randn(32, 16, device=gpu)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    batches = torch.utils.data.DataLoader(Squares(), 4, num_workers=2, pin_memory=True)
    squares = torch.cat([batch.to(gpu, non_blocking=True) for batch in batches]).tolist()
    total = torch.ones(1, device=device)
    dist.all_reduce(total)
    found = {"drawn": drawn, "losses": losses, "squares": squares, "sum": total.item()}
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


PROGRAMS = (devices, out_of_memory, hold, hang, usual)

if __name__ == "__main__":
    {program.__name__: program for program in PROGRAMS}[sys.argv[1]]()
