"""A pipeline by torch.distributed.pipelining: each rank holds some layers, a schedule orders them.

By hand, two stages on this machine; one on each of two nodes, the first being 10.0.0.1:

    torchrun --standalone --nproc_per_node=2 pipeline.py --schedule 1f1b
    torchrun --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 pipeline.py
    torchrun --nnodes=2 --node_rank=1 --master_addr=10.0.0.1 pipeline.py

GPipe sends all micro-batches forward, then all of them back. 1F1B sends one back as soon as it can,
so that a stage keeps the activations of few. The outcome is that of the whole model, by any number
of stages: `python pipeline.py` trains it on one device.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any, List, Tuple

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # not needed here

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

try:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    inspect.signature(PipelineStage).bind(None, 0, 1, None)  # torch 2.5 wants shapes, too
except (ImportError, TypeError):
    sys.stderr.write(
        f"{Path(__file__).name}: error: this torch, {torch.__version__}, "
        "has no torch.distributed.pipelining that infers shapes: use 2.6 or newer\n"
    )
    raise SystemExit(2) from None

RANK = int(os.environ.get("RANK", "0"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
LOCAL_WORLD_SIZE = int(os.environ.get("LOCAL_WORLD_SIZE", LOCAL_RANK + 1))

FEATURES, WIDTH, CLASSES = 16, 64, 4
LAYERS = 8
SCHEDULES: Any = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def parse_args() -> argparse.Namespace:
    """Read the command line; anything wrong is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--schedule", choices=sorted(SCHEDULES), default="gpipe", help="(gpipe)")
    add("--steps", type=int, default=100, help="of the optimizer (100)")
    add("--batch_size", type=int, default=96, help="samples per step (96)")
    add("--microbatches", type=int, default=8, help="parts of a batch (8)")
    add("--lr", type=float, default=0.05, help="learning rate (0.05)")
    add("--seed", type=int, default=0, help="of weights and data (0)")
    add("--log_every", type=int, default=10, metavar="N", help="steps (10)")
    add("--backend", help="nccl on GPUs or gloo on CPUs ($DIST_BACKEND, else by the GPUs)")
    args = parser.parse_args()

    gpus = torch.cuda.device_count()
    found = "nccl" if gpus >= LOCAL_WORLD_SIZE else "gloo"
    args.backend = args.backend or os.environ.get("DIST_BACKEND") or found
    args.device = torch.device(f"cuda:{LOCAL_RANK}" if args.backend == "nccl" else "cpu")
    for option in ("steps", "batch_size", "microbatches", "log_every"):
        if getattr(args, option) < 1:
            parser.error(f"--{option} must be at least 1, not {getattr(args, option)}")
    if WORLD_SIZE > LAYERS:
        parser.error(f"the {LAYERS} layers go to {LAYERS} ranks or fewer, not {WORLD_SIZE}")
    if args.microbatches < WORLD_SIZE:
        parser.error(f"--microbatches must be at least {WORLD_SIZE}, the number of stages")
    if args.batch_size % args.microbatches:
        parser.error(f"--batch_size {args.batch_size} must be a multiple of --microbatches")
    if args.backend not in ("gloo", "nccl"):
        parser.error(f"--backend or DIST_BACKEND must be gloo or nccl, not {args.backend!r}")
    if args.backend == "nccl" and gpus <= LOCAL_RANK:
        parser.error(f"nccl needs a GPU for local rank {LOCAL_RANK}; this host shows {gpus}")
    return args


class Block(nn.Module):
    """A layer with a shortcut around it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Add the result of the layer to the input."""
        return x + torch.tanh(self.linear(x))


def build_model(seed: int) -> nn.Sequential:
    """Return all layers; their weights follow from the seed."""
    torch.manual_seed(seed)
    blocks = (Block() for _ in range(LAYERS - 2))
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), *blocks, nn.Linear(WIDTH, CLASSES))


def load_batch(step: int, args: argparse.Namespace) -> Tuple[Tensor, Tensor]:
    """Return a step's samples and labels: which of the first four features is the largest?"""
    generator = torch.Generator().manual_seed(args.seed * 10**6 + step)
    samples = torch.randn(args.batch_size, FEATURES, generator=generator)
    return samples, samples[:, :CLASSES].argmax(1)


class Stage:
    """This rank's layers, and the schedule by which it computes them."""

    def __init__(self, args: argparse.Namespace) -> None:
        first, last = (LAYERS * edge // WORLD_SIZE for edge in (RANK, RANK + 1))
        self.device = args.device
        self.layers = build_model(args.seed)[first:last].to(self.device)
        stage = PipelineStage(self.layers, RANK, WORLD_SIZE, self.device)
        schedule = SCHEDULES[args.schedule]
        self.schedule = schedule(stage, args.microbatches, loss_fn=cross_entropy)

    def step(self, samples: Tensor, labels: Tensor) -> Tuple[Tensor, Tensor]:
        """Send a batch forward and back.

        Returns:
            The model's outputs on the last rank, nothing on the others, and the loss on all.
        """
        inputs = [samples.to(self.device)] if RANK == 0 else []
        losses: List[Tensor] = []
        if RANK == WORLD_SIZE - 1:
            outputs = self.schedule.step(*inputs, target=labels.to(self.device), losses=losses)
            loss = torch.stack(losses).mean().detach()
        else:
            outputs = self.schedule.step(*inputs)
            loss = torch.zeros((), device=self.device)
        dist.broadcast(loss, src=WORLD_SIZE - 1)
        return outputs, loss


def train(args: argparse.Namespace) -> None:
    """Train the layers of this rank; rank 0 prints the loss of the last one."""
    stage = Stage(args)
    optimizer = torch.optim.SGD(stage.layers.parameters(), args.lr)
    began = time.monotonic()
    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        _, loss = stage.step(*load_batch(step, args))
        optimizer.step()
        if RANK == 0 and (step % args.log_every == 0 or step == args.steps):
            progress = {"step": step, "steps": args.steps, "loss": round(loss.item(), 6)}
            rate = round(step * args.batch_size / (time.monotonic() - began), 1)
            print(json.dumps({**progress, "rate": rate, "unit": "samples"}), flush=True)
            if step == args.steps:
                print(f"loss {loss.item():.4f} after {step} steps", flush=True)


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
