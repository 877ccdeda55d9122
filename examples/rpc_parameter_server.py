"""A parameter server by torch.distributed.rpc: the last rank holds the model, the others train it.

By hand, two trainers and their server on this machine; a trainer and a server on two nodes, the
first being 10.0.0.1 (TP_SOCKET_IFNAME names the interface where a host has several):

    torchrun --standalone --nproc_per_node=3 rpc_parameter_server.py
    torchrun --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 rpc_parameter_server.py
    torchrun --nnodes=2 --node_rank=1 --master_addr=10.0.0.1 rpc_parameter_server.py

In each step a trainer fetches the parameters and computes a loss on its share of the batch.
Distributed autograd carries the gradients to the server, and a DistributedOptimizer applies them
there, one trainer's after the other's: the outcome is that of one process with the whole batch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Tuple

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # not needed here

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import rpc
from torch.func import functional_call
from torch.nn.functional import cross_entropy

if not rpc.is_available():
    lacks = f"{torch.__version__}, was built without RPC"
    sys.stderr.write(f"{Path(__file__).name}: error: this torch, {lacks}\n")
    raise SystemExit(2)

import torch.distributed.autograd as dist_autograd
from torch.distributed.optim import DistributedOptimizer
from torch.distributed.rpc import RRef

warnings.filterwarnings("ignore", module="torch.distributed")  # of RPC about its own means

RANK = int(os.environ.get("RANK", "0"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
TRAINERS = WORLD_SIZE - 1

FEATURES, HIDDEN, CLASSES = 16, 64, 4


def parse_args() -> argparse.Namespace:
    """Read the command line; anything wrong is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--steps", type=int, default=200, help="of the optimizer (200)")
    add("--batch_size", type=int, default=420, help="samples per step of all trainers (420)")
    add("--lr", type=float, default=0.5, help="learning rate (0.5)")
    add("--seed", type=int, default=0, help="of weights and data (0)")
    add("--log_every", type=int, default=20, metavar="N", help="steps (20)")
    add("--checkpoint", type=Path, metavar="PATH", help="the server writes it at the end")
    args = parser.parse_args()

    if not TRAINERS:
        parser.error("a server and its trainers take 2 ranks or more: torchrun --nproc_per_node=2")
    for option in ("steps", "batch_size", "log_every"):
        if getattr(args, option) < 1:
            parser.error(f"--{option} must be at least 1, not {getattr(args, option)}")
    if args.batch_size % TRAINERS:
        what = f"a multiple of the {TRAINERS} trainers"
        parser.error(f"--batch_size {args.batch_size} must be {what}")
    if args.checkpoint and RANK == TRAINERS:
        try:  # what cannot be written shall fail now, not after the training
            open_aside(args.checkpoint).close()
        except OSError as error:
            parser.error(f"--checkpoint: {error}")
    return args


def open_aside(path: Path) -> BinaryIO:
    """Open a file to be renamed to this one: a reader finds the old one or the new, never half."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(path.name + ".tmp").open("wb")


def build_model(seed: int) -> nn.Sequential:
    """Return the classifier; its weights follow from the seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


def load_batch(step: int, args: argparse.Namespace) -> Tuple[Tensor, Tensor]:
    """Return a step's samples and labels: which of the first four features is the largest?"""
    generator = torch.Generator().manual_seed(args.seed * 10**6 + step)
    samples = torch.randn(args.batch_size, FEATURES, generator=generator)
    return samples, samples[:, :CLASSES].argmax(1)


class ParameterServer:
    """Holds the model; the trainers call its methods from afar."""

    def __init__(self, seed: int) -> None:
        self.model = build_model(seed)

    def fetch(self) -> Dict[str, Tensor]:
        """Return the parameters so that what is computed from them has gradients here."""
        # Views: pickle would take an nn.Parameter apart, and with it the graph.
        return {name: value.view_as(value) for name, value in self.model.named_parameters()}

    def references(self) -> List[Any]:
        """Return what an optimizer needs of parameters that are elsewhere."""
        return [RRef(parameter) for parameter in self.model.parameters()]


def train(server: Any, args: argparse.Namespace) -> None:
    """Train as one of the trainers; the server calls this in each of them, at once."""
    on_gpu = os.environ.get("DIST_BACKEND") != "gloo" and torch.cuda.device_count() > LOCAL_RANK
    device = torch.device(f"cuda:{LOCAL_RANK}" if on_gpu else "cpu")
    model = build_model(args.seed).to(device)  # its weights are replaced by those of the server
    # The steps of all trainers add up: each is that of a mean over the whole batch, times its part.
    optimizer: Any = DistributedOptimizer(  # type: ignore[no-untyped-call]
        torch.optim.SGD, server.rpc_sync().references(), lr=args.lr / TRAINERS
    )
    began = time.monotonic()
    for step in range(1, args.steps + 1):
        samples, labels = (part[RANK::TRAINERS].to(device) for part in load_batch(step, args))
        with dist_autograd.context() as context:
            fetched = {name: value.to(device) for name, value in server.rpc_sync().fetch().items()}
            loss = cross_entropy(functional_call(model, fetched, samples), labels)
            dist_autograd.backward(context, [loss])  # type: ignore[attr-defined]
            # In turns, when all have computed, so that two runs are equal. The lock-free updates
            # of "Hogwild" are this without barriers.
            for turn in range(TRAINERS + 1):
                dist.barrier()
                if turn == RANK:
                    optimizer.step(context)
        report(step, loss.detach().cpu(), time.monotonic() - began, args)


def report(step: int, loss: Tensor, elapsed_s: float, args: argparse.Namespace) -> None:
    """Print the mean loss of all trainers now and then, and at the end."""
    if step % args.log_every and step < args.steps:
        return
    dist.all_reduce(loss)
    mean = loss.item() / TRAINERS
    if RANK == 0:
        rate = round(step * args.batch_size / elapsed_s, 1)
        progress = {"step": step, "steps": args.steps, "loss": round(mean, 6)}
        print(json.dumps({**progress, "rate": rate, "unit": "samples"}), flush=True)
        if step == args.steps:
            print(f"loss {mean:.4f} after {step} steps", flush=True)


def serve(args: argparse.Namespace) -> None:
    """Have all trainers train the model that is here, and save it."""
    server = ParameterServer(args.seed)
    here = RRef(server)
    names = (f"trainer{index}" for index in range(TRAINERS))
    trainings = [rpc.rpc_async(name, train, (here, args), timeout=0) for name in names]
    torch.futures.wait_all(trainings)
    if args.checkpoint:
        with open_aside(args.checkpoint) as file:
            torch.save(server.model.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(args.checkpoint)


def main() -> None:
    """Join the other ranks, serve or train, and leave in good order."""
    args = parse_args()
    if RANK < TRAINERS:
        dist.init_process_group("gloo", rank=RANK, world_size=TRAINERS)  # for barriers
    name = f"trainer{RANK}" if RANK < TRAINERS else "server"
    rpc.init_rpc(name, rank=RANK, world_size=WORLD_SIZE)  # type: ignore[no-untyped-call]
    if RANK == TRAINERS:
        serve(args)
    rpc.shutdown()  # returns when no rank has anything left to do
    if RANK < TRAINERS:
        dist.destroy_process_group()
        # Gloo's threads let go of their last tensors only now and need the interpreter for it; one
        # that is already shutting down would abort the process (pytorch/pytorch#179291).
        time.sleep(0.2)


if __name__ == "__main__":
    main()
