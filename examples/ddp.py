"""DistributedDataParallel: each rank trains on its part of every batch; gradients are averaged.

By hand, two ranks on this machine; two on each of two nodes, the first being 10.0.0.1:

    torchrun --standalone --nproc_per_node=2 ddp.py
    torchrun --nnodes=2 --node_rank=0 --nproc_per_node=2 --master_addr=10.0.0.1 ddp.py
    torchrun --nnodes=2 --node_rank=1 --nproc_per_node=2 --master_addr=10.0.0.1 ddp.py

It is single.py on many devices, with the same batches and up to rounding the same losses:
`diff single.py ddp.py`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # not needed here

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANK = int(os.environ.get("RANK", "0"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
TRAIN_IMAGES = 1437  # every fifth image of the file is for the test


def parse_args() -> argparse.Namespace:
    """Read the command line; anything wrong is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, description="train on many devices")
    add = parser.add_argument
    add("--epochs", type=int, default=10, help="passes over the training set (10)")
    add("--batch_size", type=int, default=48, help="images per step of all ranks together (48)")
    add("--accumulate", type=int, default=1, help="parts in which a rank takes its images (1)")
    add("--lr", type=float, default=0.1, help="learning rate (0.1)")
    add("--seed", type=int, default=0, help="of weights and order (0)")
    add("--log_every", type=int, default=20, help="steps from one progress line to the next (20)")
    add("--backend", help="nccl on GPUs or gloo on CPUs ($DIST_BACKEND, else by the GPUs)")
    checkpoint = "rank 0 writes it after each epoch, and begins with it where it is there"
    add("--checkpoint", type=Path, metavar="PATH", help=checkpoint)
    args = parser.parse_args()

    gpus = torch.cuda.device_count()
    found = "nccl" if gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")) else "gloo"
    args.backend = args.backend or os.environ.get("DIST_BACKEND") or found
    args.device = torch.device(f"cuda:{LOCAL_RANK}" if args.backend == "nccl" else "cpu")
    if min(args.epochs, args.accumulate, args.log_every) < 1:
        parser.error("--epochs, --accumulate and --log_every must be at least 1")
    if not args.lr > 0:
        parser.error(f"--lr must be above 0, not {args.lr}")
    if not 1 <= args.batch_size <= TRAIN_IMAGES:
        parser.error(f"--batch_size must be from 1 to {TRAIN_IMAGES}")
    if args.batch_size % (parts := WORLD_SIZE * args.accumulate):
        what = f"{WORLD_SIZE} ranks times --accumulate {args.accumulate}"
        parser.error(f"--batch_size must be a multiple of {parts}, {what}, not {args.batch_size}")
    if args.backend not in ("gloo", "nccl"):
        parser.error(f"--backend or DIST_BACKEND must be gloo or nccl, not {args.backend!r}")
    if args.backend == "nccl" and gpus <= LOCAL_RANK:
        parser.error(f"nccl needs a GPU for local rank {LOCAL_RANK}; this host shows {gpus}")
    try:
        args.state = load_checkpoint(args.checkpoint) if args.checkpoint and RANK == 0 else None
    except (OSError, ValueError) as error:
        parser.error(f"--checkpoint: {error}")
    return args


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """Return all images, as rows of 64 pixels, with labels: the training set, then the test set."""
    with gzip.open(Path(__file__).with_name("digits.csv.gz"), "rt") as file:
        rows = torch.tensor([[int(value) for value in line.split(",")] for line in file])
    images, labels = rows[:, :64] / 16, rows[:, 64]
    test = torch.arange(len(rows)) % 5 == 0
    return TensorDataset(images[~test], labels[~test]), TensorDataset(images[test], labels[test])


def make_model() -> nn.Module:
    """Return two layers, from 64 pixels to 10 digits."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def evaluate(model: nn.Module, test_set: TensorDataset, device: torch.device) -> str:
    """Return loss and accuracy on the test set, in words."""
    images, labels = (tensor.to(device) for tensor in test_set.tensors)
    with torch.no_grad():
        outputs = model(images)
    loss, right = cross_entropy(outputs, labels), outputs.argmax(1) == labels
    return f"test loss {loss:.4f}, test accuracy {100 * right.float().mean():.2f} %"


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a new file, then rename it: a reader finds the old file or the new one, never half."""
    aside = path.with_name(path.name + ".tmp")
    with aside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """Return what an earlier start left; raise where it is no checkpoint, or none can be left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".tmp")
    aside.touch()  # what cannot be written shall fail now, not after an epoch
    aside.unlink()
    if not path.exists():
        return None
    try:
        state = torch.load(path, "cpu", weights_only=True)
        make_model().load_state_dict(state["model"])
        return {name: state[name] for name in ("model", "optimizer", "epoch", "step")}
    except Exception as error:  # noqa: BLE001 - a foreign file may hold anything
        raise ValueError(f"{path} is no checkpoint of ddp.py ({type(error).__name__})") from None


def say(line: str) -> None:
    """Print a line at once, on rank 0 only."""
    if RANK == 0:
        print(line, flush=True)


def train(args: argparse.Namespace) -> None:
    """Train, test and save; print the progress and the result."""
    device = args.device
    train_set, test_set = load_digits()
    sampler = DistributedSampler[Any](train_set, WORLD_SIZE, RANK, seed=args.seed, drop_last=True)
    batches = DataLoader(train_set, args.batch_size // WORLD_SIZE, sampler=sampler, drop_last=True)

    torch.manual_seed(args.seed)
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    first_step, epochs_done = 0, 0
    dist.broadcast_object_list(found := [args.state])  # of rank 0: other nodes lack the file
    if state := found[0]:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_step, epochs_done = state["step"], state["epoch"]
        say(f"goes on after epoch {epochs_done} of {args.epochs}, from {args.checkpoint}")
    parallel = DistributedDataParallel(model)
    step, steps = first_step, first_step + (args.epochs - epochs_done) * len(batches)

    began = time.monotonic()
    for epoch in range(epochs_done, args.epochs):
        sampler.set_epoch(epoch)  # a new order
        for images, labels in batches:
            optimizer.zero_grad()
            loss = torch.zeros((), device=device)
            parts = list(zip(images.chunk(args.accumulate), labels.chunk(args.accumulate)))
            for number, (inputs, targets) in enumerate(parts, 1):
                # Gradients add up in each rank; only the last backward averages over the ranks.
                with nullcontext() if number == len(parts) else parallel.no_sync():
                    part = cross_entropy(parallel(inputs.to(device)), targets.to(device))
                    (part / len(parts)).backward()  # type: ignore[no-untyped-call]
                loss += part.detach() / len(parts) / WORLD_SIZE
            optimizer.step()
            step += 1
            if step % args.log_every == 0 or step == steps:
                dist.all_reduce(loss)
                rate = (step - first_step) * args.batch_size / (time.monotonic() - began)
                progress = {"step": step, "steps": steps, "loss": round(loss.item(), 4)}
                say(json.dumps({**progress, "rate": round(rate, 1), "unit": "images"}))
        if args.checkpoint and RANK == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save_checkpoint(args.checkpoint, {**state, "epoch": epoch + 1, "step": step})
    say(f"{evaluate(model, test_set, device)} after {step} steps")


def main() -> int:
    """Join the other ranks, train, and leave in good order."""
    args = parse_args()
    if args.device.type == "cuda":
        torch.cuda.set_device(args.device)
    if "RANK" in os.environ:
        dist.init_process_group(args.backend)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(args.backend, store=store, rank=0, world_size=1)
    say(f"world size {WORLD_SIZE}, backend {args.backend}, device {args.device}")
    train(args)
    dist.destroy_process_group()
    time.sleep(0.2)  # gloo's threads need the interpreter to let go (pytorch/pytorch#179291)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
