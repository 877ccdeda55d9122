"""Tensor and data parallelism in two dimensions: a transformer on a device mesh, by DTensor.

By hand, 2 x 2 ranks on this machine; two on each of two nodes, the first being 10.0.0.1:

    torchrun --standalone --nproc_per_node=4 tensor_parallel.py --tensor_parallel 2
    torchrun --nnodes=2 --node_rank=0 --nproc_per_node=2 --master_addr=10.0.0.1 tensor_parallel.py
    torchrun --nnodes=2 --node_rank=1 --nproc_per_node=2 --master_addr=10.0.0.1 tensor_parallel.py

Neighbouring ranks, best those of one node, share each matrix and compute on the same samples; the
groups of them take different samples, and shard their parts once more by `fully_shard`. Attention
heads and hidden columns never meet until the second matrix sums them up: one all_reduce for each.
The outcome is that of one device: `python tensor_parallel.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # not needed here

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

try:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard
    from torch.distributed.tensor import parallel as tp
except ImportError:
    lacks = f"{torch.__version__}, has no torch.distributed.fsdp.fully_shard: use 2.6 or newer"
    sys.stderr.write(f"{Path(__file__).name}: error: this torch, {lacks}\n")
    raise SystemExit(2) from None

RANK = int(os.environ.get("RANK", "0"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
LOCAL_WORLD_SIZE = int(os.environ.get("LOCAL_WORLD_SIZE", LOCAL_RANK + 1))

TOKENS, LENGTH = 16, 16
WIDTH, HEADS, BLOCKS = 32, 4, 2


def parse_args() -> argparse.Namespace:
    """Read the command line; anything wrong is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    shared = "ranks that share each matrix (2; 1 where the number of ranks is odd)"
    add("--tensor_parallel", type=int, default=2 - WORLD_SIZE % 2, metavar="N", help=shared)
    add("--steps", type=int, default=60, help="of the optimizer (60)")
    add("--batch_size", type=int, default=24, help="sequences per step of all ranks (24)")
    add("--lr", type=float, default=0.003, help="learning rate (0.003)")
    add("--seed", type=int, default=0, help="of weights and data (0)")
    add("--log_every", type=int, default=10, metavar="N", help="steps (10)")
    add("--backend", help="nccl on GPUs or gloo on CPUs ($DIST_BACKEND, else by the GPUs)")
    args = parser.parse_args()

    gpus = torch.cuda.device_count()
    found = "nccl" if gpus >= LOCAL_WORLD_SIZE else "gloo"
    args.backend = args.backend or os.environ.get("DIST_BACKEND") or found
    args.device = torch.device(f"cuda:{LOCAL_RANK}" if args.backend == "nccl" else "cpu")
    if min(args.tensor_parallel, args.steps, args.batch_size, args.log_every) < 1:
        parser.error("--tensor_parallel, --steps, --batch_size and --log_every must be at least 1")
    if HEADS % args.tensor_parallel or WORLD_SIZE % args.tensor_parallel:
        what = f"{args.tensor_parallel} must divide the {HEADS} heads and the {WORLD_SIZE} ranks"
        parser.error(f"--tensor_parallel {what}")
    args.data_parallel = WORLD_SIZE // args.tensor_parallel
    if args.batch_size % args.data_parallel:
        what = f"a multiple of the {args.data_parallel} groups of ranks"
        parser.error(f"--batch_size {args.batch_size} must be {what}")
    if args.backend not in ("gloo", "nccl"):
        parser.error(f"--backend or DIST_BACKEND must be gloo or nccl, not {args.backend!r}")
    if args.backend == "nccl" and gpus <= LOCAL_RANK:
        parser.error(f"nccl needs a GPU for local rank {LOCAL_RANK}; this host shows {gpus}")
    if args.backend == "gloo" and not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        parser.error(f"torch {torch.__version__} averages wrongly over gloo: nccl or a newer one")
    return args


class Block(nn.Module):
    """Attention to what came before, and two layers, each with a shortcut around it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.mix = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Add the results to the input."""
        y = self.norm1(x)
        query, key, value = (
            linear(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)  # -1: this rank's heads
            for linear in (self.query, self.key, self.value)
        )
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(attended.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(gelu(self.up(self.norm2(x))))
        return out


class Transformer(nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return for each token, of all sequences in a row, the logits of the next."""
        x = self.token(tokens) + self.place.weight
        out: Tensor = self.head(self.norm(self.blocks(x)).flatten(0, 1))
        return out


def build_model(seed: int) -> Transformer:
    """Return the whole model; its weights follow from the seed."""
    torch.manual_seed(seed)
    return Transformer()


def parallelize(model: Transformer, args: argparse.Namespace) -> Any:
    """Split the model over the mesh, in both dimensions; return the mesh."""
    shape = (args.data_parallel, args.tensor_parallel)
    mesh = init_device_mesh(args.device.type, shape, mesh_dim_names=("data", "tensor"))
    for block in model.blocks:
        columns = {name: tp.ColwiseParallel() for name in ("query", "key", "value", "up")}
        rows = {name: tp.RowwiseParallel() for name in ("mix", "down")}
        tp.parallelize_module(block, mesh["tensor"], {**columns, **rows})
    for module in (*model.blocks, model):
        sharded: Any = fully_shard(module, mesh=mesh["data"])
        if args.backend == "gloo":  # which has summed in place of a mean (pytorch/pytorch#162338)
            sharded.set_force_sum_reduction_for_comms(True)
    return mesh


def load_batch(step: int, args: argparse.Namespace) -> Tensor:
    """Return a step's sequences: each counts on from a random start by a random distance."""
    generator = torch.Generator().manual_seed(args.seed * 10**6 + step)
    start, distance = torch.randint(TOKENS, (2, args.batch_size, 1), generator=generator)
    sequences: Tensor = (start + distance * torch.arange(LENGTH + 1)) % TOKENS
    return sequences


def train(args: argparse.Namespace) -> None:
    """Train; rank 0 prints the mean loss of all groups."""
    model = build_model(args.seed).to(args.device)
    groups = parallelize(model, args)["data"]
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    mean = torch.zeros(())
    began = time.monotonic()
    for step in range(1, args.steps + 1):
        batch = load_batch(step, args).to(args.device)
        mine = batch[groups.get_local_rank() :: args.data_parallel]
        loss = cross_entropy(model(mine[:, :-1]), mine[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % args.log_every == 0 or step == args.steps:
            mean = loss.detach() / args.data_parallel
            dist.all_reduce(mean, group=groups.get_group())
            if RANK == 0:
                progress = {"step": step, "steps": args.steps, "loss": round(mean.item(), 6)}
                rate = round(step * args.batch_size * LENGTH / (time.monotonic() - began), 1)
                print(json.dumps({**progress, "rate": rate, "unit": "tokens"}), flush=True)
    if RANK == 0:
        print(f"loss {mean.item():.4f} after {args.steps} steps", flush=True)


def main() -> None:
    """Join the other ranks, train, and leave in good order."""
    args = parse_args()
    if args.device.type == "cuda":
        torch.cuda.set_device(args.device)
    store = None if "RANK" in os.environ else dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(args.backend, store=store, rank=RANK, world_size=WORLD_SIZE)
    train(args)
    dist.destroy_process_group()
    # Gloo's threads let go of their last tensors only now and need the interpreter for it; one
    # that is already shutting down would abort the process (pytorch/pytorch#179291).
    time.sleep(0.2)


if __name__ == "__main__":
    main()
