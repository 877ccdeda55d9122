"""A model over several workers by torch.distributed.rpc: rank 0 sends micro-batches through them.

By hand, two workers on this machine; one on each of two nodes, the first being 10.0.0.1
(TP_SOCKET_IFNAME names the interface where a host has several):

    torchrun --standalone --nproc_per_node=2 rpc_pipeline.py
    torchrun --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 rpc_pipeline.py
    torchrun --nnodes=2 --node_rank=1 --master_addr=10.0.0.1 rpc_pipeline.py

Every rank holds a part of the layers, rank 0 the first ones, and leads. While a worker computes on
one micro-batch, the worker before it computes on the next one. Distributed autograd goes the same
way back, and a DistributedOptimizer steps on each worker: it is the training of the whole model,
but for rounding, since the gradients of micro-batches add up in the order in which they arrive.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path
from threading import Lock
from typing import Any, List, Tuple

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # not needed here

import torch
from torch import Tensor, nn
from torch.distributed import rpc
from torch.nn.functional import cross_entropy

if not rpc.is_available():
    name = Path(__file__).name
    sys.stderr.write(f"{name}: error: this torch, {torch.__version__}, was built without RPC\n")
    raise SystemExit(2)

import torch.distributed.autograd as dist_autograd
from torch.distributed.optim import DistributedOptimizer
from torch.distributed.rpc import RRef, TensorPipeRpcBackendOptions

warnings.filterwarnings("ignore", module="torch.distributed")  # of RPC about its own means

RANK = int(os.environ.get("RANK", "0"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))

FEATURES, WIDTH, CLASSES = 16, 64, 4
LAYERS = 8


def parse_args() -> argparse.Namespace:
    """Read the command line; anything wrong is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--steps", type=int, default=100, help="of the optimizer (100)")
    add("--batch_size", type=int, default=96, help="samples per step (96)")
    add("--microbatches", type=int, default=4, help="parts of a batch (4)")
    add("--lr", type=float, default=0.05, help="learning rate (0.05)")
    add("--seed", type=int, default=0, help="of weights and data (0)")
    add("--log_every", type=int, default=10, metavar="N", help="steps (10)")
    args = parser.parse_args()

    if WORLD_SIZE not in range(2, LAYERS + 1):
        ranks = f"2 to {LAYERS} ranks, not {WORLD_SIZE}"
        parser.error(f"the {LAYERS} layers go to {ranks}: torchrun --nproc_per_node=2")
    for option in ("steps", "batch_size", "microbatches", "log_every"):
        if getattr(args, option) < 1:
            parser.error(f"--{option} must be at least 1, not {getattr(args, option)}")
    if args.batch_size % args.microbatches:
        parser.error(f"--batch_size {args.batch_size} must be a multiple of --microbatches")
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
    """A worker's layers; the leader calls the methods from afar."""

    def __init__(self, index: int, stages: int, seed: int) -> None:
        on_gpu = os.environ.get("DIST_BACKEND") != "gloo" and torch.cuda.device_count() > LOCAL_RANK
        self.device = torch.device(f"cuda:{LOCAL_RANK}" if on_gpu else "cpu")
        first, last = (LAYERS * edge // stages for edge in (index, index + 1))
        self.layers = build_model(seed)[first:last].to(self.device)
        self.lock = Lock()

    def forward(self, before: Any) -> Tensor:
        """Compute what the next worker fetches, from what it is told where to fetch."""
        inputs = before.to_here().to(self.device)
        with self.lock:  # one micro-batch at a time: the others are received meanwhile
            outputs: Tensor = self.layers(inputs)
        return outputs.cpu()

    def references(self) -> List[Any]:
        """Return what an optimizer needs of parameters that are elsewhere."""
        return [RRef(parameter) for parameter in self.layers.parameters()]


class Pipeline:
    """The stages on all workers, as one model that the leader calls."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.microbatches = args.microbatches
        self.stages: List[Any] = [
            rpc.remote(f"worker{index}", Stage, (index, WORLD_SIZE, args.seed))
            for index in range(WORLD_SIZE)
        ]
        # This also waits until every stage is there: what rpc_async sends to one that is not has
        # no part in distributed autograd, without a word.
        self.parameters = [one for stage in self.stages for one in stage.rpc_sync().references()]

    def __call__(self, samples: Tensor) -> Tensor:
        """Return the outputs; every micro-batch is under way at once."""
        outputs = []
        for part in samples.chunk(self.microbatches):
            at = RRef(part)
            for stage in self.stages[:-1]:
                at = stage.remote().forward(at)
            outputs.append(self.stages[-1].rpc_async().forward(at))
        return torch.cat(torch.futures.wait_all(outputs))


def train(args: argparse.Namespace) -> None:
    """Lead the workers through all steps."""
    model = Pipeline(args)
    optimizer: Any = DistributedOptimizer(  # type: ignore[no-untyped-call]
        torch.optim.SGD, model.parameters, lr=args.lr
    )
    loss = torch.tensor(0.0)
    began = time.monotonic()
    for step in range(1, args.steps + 1):
        samples, labels = load_batch(step, args)
        with dist_autograd.context() as context:
            loss = cross_entropy(model(samples), labels)
            dist_autograd.backward(context, [loss])  # type: ignore[attr-defined]
            optimizer.step(context)
        if step % args.log_every == 0 or step == args.steps:
            progress = {"step": step, "steps": args.steps, "loss": round(loss.item(), 6)}
            rate = round(step * args.batch_size / (time.monotonic() - began), 1)
            print(json.dumps({**progress, "rate": rate, "unit": "samples"}), flush=True)
    print(f"loss {loss.item():.4f} after {args.steps} steps", flush=True)


def join_rpc(args: argparse.Namespace) -> None:
    """Wait until all ranks are there, at the address in MASTER_ADDR and MASTER_PORT."""
    # Each micro-batch keeps a thread, in which it waits for the worker before; 16 for the rest.
    options = TensorPipeRpcBackendOptions(num_worker_threads=args.microbatches + 16)
    rpc.init_rpc(  # type: ignore[no-untyped-call]
        f"worker{RANK}", rank=RANK, world_size=WORLD_SIZE, rpc_backend_options=options
    )


def main() -> None:
    """Join the other ranks, lead or serve, and leave in good order."""
    args = parse_args()
    join_rpc(args)
    if RANK == 0:
        train(args)
    rpc.shutdown()  # returns when no rank has anything left to do


if __name__ == "__main__":
    main()
