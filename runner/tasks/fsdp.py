"""FSDP2: parameters, gradients and optimizer sharded over all ranks by `fully_shard`.

By hand, two ranks on this machine; one on each of two nodes, the first being 10.0.0.1:

    torchrun --standalone --nproc_per_node=2 fsdp.py --checkpoint state
    torchrun --standalone --nproc_per_node=4 fsdp.py --resume state --steps 200
    torchrun --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 fsdp.py
    torchrun --nnodes=2 --node_rank=1 --master_addr=10.0.0.1 fsdp.py

A rank keeps its part of each layer. A layer is put together just before it computes and taken apart
after; gradients are averaged and split in one operation, reduce-scatter. Each rank writes its own
part of a checkpoint, and any number of ranks reads it: the folder must be on a disk that all share.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Dict, Tuple

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # not needed here

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

try:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError:
    sys.stderr.write(
        f"{Path(__file__).name}: error: this torch, {torch.__version__}, "
        "has no torch.distributed.fsdp.fully_shard: use 2.6 or newer\n"
    )
    raise SystemExit(2) from None
from torch.distributed.device_mesh import init_device_mesh

RANK = int(os.environ.get("RANK", "0"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))

FEATURES, WIDTH, CLASSES = 16, 64, 4
BLOCKS = 4


def parse_args() -> argparse.Namespace:
    """Read the command line; anything wrong is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--steps", type=int, default=100, help="of the optimizer, also after --resume (100)")
    add("--batch_size", type=int, default=96, help="samples per step of all ranks (96)")
    add("--lr", type=float, default=0.003, help="learning rate (0.003)")
    add("--seed", type=int, default=0, help="of weights and data (0)")
    mixed = "compute in bfloat16; parameters, sums of gradients and the optimizer stay float32"
    add("--mixed_precision", action="store_true", help=mixed)
    add("--checkpoint", type=Path, metavar="DIR", help="all ranks write it at the end")
    add("--resume", type=Path, metavar="DIR", help="go on from there, with any number of ranks")
    add("--log_every", type=int, default=10, metavar="N", help="steps (10)")
    add("--backend", help="gloo or nccl ($DIST_BACKEND, else nccl where there are GPUs)")
    args = parser.parse_args()

    gpus = torch.cuda.device_count()
    args.device = torch.device("cuda", LOCAL_RANK) if gpus > LOCAL_RANK else torch.device("cpu")
    args.backend = args.backend or os.environ.get("DIST_BACKEND") or ("nccl" if gpus else "gloo")
    for option in ("steps", "batch_size", "log_every"):
        if getattr(args, option) < 1:
            parser.error(f"--{option} must be at least 1, not {getattr(args, option)}")
    if args.batch_size % WORLD_SIZE:
        parser.error(f"--batch_size {args.batch_size} must be a multiple of the {WORLD_SIZE} ranks")
    if args.backend not in ("gloo", "nccl"):
        parser.error(f"--backend or DIST_BACKEND must be gloo or nccl, not {args.backend!r}")
    if args.backend == "nccl" and args.device.type == "cpu":
        parser.error(f"nccl needs a GPU for local rank {LOCAL_RANK}; this host shows {gpus}")
    if args.resume and not (args.resume / ".metadata").is_file():
        parser.error(f"--resume: no checkpoint in {args.resume}, which all nodes must share")
    return args


class Block(nn.Module):
    """Two layers with a shortcut around them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Add the result of the layers to the input."""
        out: Tensor = x + self.down(torch.tanh(self.up(x)))
        return out


def build_model(seed: int) -> nn.Sequential:
    """Return the whole model; its weights follow from the seed."""
    torch.manual_seed(seed)
    blocks = (Block() for _ in range(BLOCKS))
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), *blocks, nn.Linear(WIDTH, CLASSES))


def shard(model: nn.Sequential, args: argparse.Namespace) -> None:
    """Split each block's parameters over all ranks, then what is left of the model's."""
    mesh = init_device_mesh(args.device.type, (WORLD_SIZE,))
    compute = torch.bfloat16 if args.mixed_precision else None
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for block in model:
        if isinstance(block, Block):
            fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def load_batch(step: int, args: argparse.Namespace) -> Tuple[Tensor, Tensor]:
    """Return a step's samples and labels: which of the first four features is the largest?"""
    generator = torch.Generator().manual_seed(args.seed * 10**6 + step)
    samples = torch.randn(args.batch_size, FEATURES, generator=generator)
    return samples, samples[:, :CLASSES].argmax(1)


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> Dict[str, Any]:
    """Return what a checkpoint holds: of each tensor this rank's part and its place.

    Of an optimizer that has not stepped yet, torch makes the state by a step, which counts: only
    for a state that is replaced.
    """
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer, "step": 0, "loss": math.nan}


def train(args: argparse.Namespace) -> None:
    """Train; rank 0 prints the mean loss of all ranks."""
    model = build_model(args.seed).to(args.device)
    shard(model, args)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    done, mean = 0, math.nan
    if args.resume:
        state = snapshot(model, optimizer)
        # Each rank reads what belongs to its part.
        dcp.load(state, checkpoint_id=args.resume)  # type: ignore[attr-defined]
        states = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(model, optimizer, **states)
        done, mean = state["step"], state["loss"]
    began = time.monotonic()
    for step in range(done + 1, args.steps + 1):
        samples, labels = (
            part[RANK::WORLD_SIZE].to(args.device) for part in load_batch(step, args)
        )
        loss = cross_entropy(model(samples).float(), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % args.log_every == 0 or step == args.steps:
            total = loss.detach()
            dist.all_reduce(total)
            mean = total.item() / WORLD_SIZE
            rate = round((step - done) * args.batch_size / (time.monotonic() - began), 1)
            progress = {"step": step, "steps": args.steps, "loss": round(mean, 6)}
            say(json.dumps({**progress, "rate": rate, "unit": "samples"}))
    done = max(done, args.steps)
    if args.checkpoint:
        state = {**snapshot(model, optimizer), "step": done, "loss": mean}
        dcp.save(state, checkpoint_id=args.checkpoint)  # type: ignore[attr-defined]
    say(f"loss {mean:.4f} after {done} steps")


def say(line: str) -> None:
    """Print on rank 0 only."""
    if RANK == 0:
        print(line, flush=True)


def main() -> None:
    """Join the other ranks, train, and leave in good order."""
    args = parse_args()
    if args.device.type == "cuda":
        torch.cuda.set_device(args.device)
    if "RANK" in os.environ:
        dist.init_process_group(args.backend)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(args.backend, store=store, rank=0, world_size=1)
    train(args)
    dist.destroy_process_group()
    # Gloo's threads let go of their last tensors only now and need the interpreter for it; one
    # that is already shutting down would abort the process (pytorch/pytorch#179291).
    time.sleep(0.2)


if __name__ == "__main__":
    main()
