r"""Elastic DDP: nodes leave and join while it trains; every step counts exactly once.

By hand, on two or three nodes, each of which but that of --rdzv_endpoint may leave and come back:

    torchrun --nnodes=2:3 --nproc_per_node=1 --max_restarts=10 --rdzv_backend=c10d \
        --rdzv_endpoint=10.0.0.1:29400 --rdzv_id=digits elastic.py

When a node leaves or joins, torchrun starts all ranks anew, with another world size. They go on
after the newest snapshot that any of them finds, be its folder each node's own or shared; steps
after that one are done again. The images of a step follow from its number, not from the number of
ranks. So the end is that of a training without interruption, up to rounding.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # not needed here

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

RANK = int(os.environ.get("RANK", "0"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
ASIDE = f".{os.uname().nodename}.{RANK}.tmp"  # others may write the same snapshot
TRAIN_IMAGES = 1437  # every fifth image of the file is for the test


def parse_args() -> argparse.Namespace:
    """Read the command line; anything wrong is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, description="nodes leave and join")
    add = parser.add_argument
    add("--epochs", type=int, default=10, help="passes over the training set (10)")
    add("--batch_size", type=int, default=48, help="images per step of all ranks together (48)")
    add("--lr", type=float, default=0.1, help="learning rate (0.1)")
    add("--seed", type=int, default=0, help="of weights and order (0)")
    add("--log_every", type=int, default=20, help="steps from one progress line to the next (20)")
    add("--save_every", type=int, default=20, help="steps from one snapshot to the next (20)")
    add("--snapshot", type=Path, default="elastic.pt", help="each node's or shared (elastic.pt)")
    add("--timeout", type=float, default=60, help="seconds to wait for a rank that is gone (60)")
    add("--backend", help="nccl on GPUs or gloo on CPUs ($DIST_BACKEND, else by the GPUs)")
    args = parser.parse_args()
    gpus = torch.cuda.device_count()
    found = "nccl" if gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")) else "gloo"
    args.backend = args.backend or os.environ.get("DIST_BACKEND") or found
    args.device = torch.device(f"cuda:{LOCAL_RANK}" if args.backend == "nccl" else "cpu")
    if min(args.epochs, args.log_every, args.save_every, args.timeout) < 1:
        parser.error("--epochs, --log_every, --save_every and --timeout must be at least 1")
    if not (1 <= args.batch_size <= TRAIN_IMAGES and args.lr > 0):
        parser.error(f"--batch_size must be from 1 to {TRAIN_IMAGES}, and --lr above 0")
    if args.backend not in ("gloo", "nccl"):
        parser.error(f"--backend or DIST_BACKEND must be gloo or nccl, not {args.backend!r}")
    if args.backend == "nccl" and gpus <= LOCAL_RANK:
        parser.error(f"nccl needs a GPU for local rank {LOCAL_RANK}; this host shows {gpus}")
    args.steps = args.epochs * (TRAIN_IMAGES // args.batch_size)
    args.order = {"batch_size": args.batch_size, "seed": args.seed}
    try:
        args.state = read_snapshot(args)
    except Exception as error:  # noqa: BLE001 - a foreign file may hold anything
        parser.error(f"--snapshot {args.snapshot} is of no use here: {error!r:.99}")
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


def batch_of(step: int, batch_size: int, seed: int) -> Tensor:
    """Return which images a step is about, of all ranks together."""
    epoch, number = divmod(step, TRAIN_IMAGES // batch_size)
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(TRAIN_IMAGES, generator=generator)
    return order[number * batch_size : (number + 1) * batch_size]


def save_snapshot(path: Path, state: dict[str, Any]) -> None:
    """Replace the file whole or not at all, also where other nodes write the same one."""
    aside = path.with_name(path.name + ASIDE)
    with aside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def read_snapshot(args: argparse.Namespace) -> dict[str, Any]:
    """Return what lies here, or the beginning; raise where it is of another training."""
    args.snapshot.parent.mkdir(parents=True, exist_ok=True)
    (aside := args.snapshot.with_name(args.snapshot.name + ASIDE)).touch()  # fail now, not later
    aside.unlink()
    if not args.snapshot.exists():
        return {"step": 0}
    state: dict[str, Any] = torch.load(args.snapshot, "cpu", weights_only=True)
    if state["order"] != args.order or state["step"] > args.steps:
        raise ValueError(f"it is of step {state['step']} with {state['order']}")
    return state


def say(line: str) -> None:
    """Print a line at once, on rank 0 only."""
    if RANK == 0:
        print(line, flush=True)


def train(args: argparse.Namespace) -> bool:
    """Do the steps that are left and print the result; return whether each step counted once."""
    device, steps = args.device, args.steps
    train_set, test_set = load_digits()
    torch.manual_seed(args.seed)
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    first_step, counts = 0, torch.zeros(TRAIN_IMAGES, dtype=torch.int64, device=device)
    newest: list[int] = [0] * WORLD_SIZE
    dist.all_gather_object(newest, args.state["step"])
    dist.broadcast_object_list(found := [args.state], src=newest.index(max(newest)))
    if (state := found[0])["step"]:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_step, counts = state["step"], state["counts"].to(device)
    where = f"world size {WORLD_SIZE}, backend {args.backend}, device {device}"
    say(f"{where}, begins after step {first_step} of {steps}")
    parallel = DistributedDataParallel(model)
    began, uses = time.monotonic(), torch.zeros_like(counts)
    for step in range(first_step + 1, steps + 1):
        mine = batch_of(step - 1, **args.order)[RANK::WORLD_SIZE]
        images, labels = (tensor.to(device) for tensor in train_set[mine])
        optimizer.zero_grad()
        # The ranks' shares may differ by one image, and DDP divides the sum by the world size.
        loss = cross_entropy(parallel(images), labels, reduction="sum") / args.batch_size
        (loss * WORLD_SIZE).backward()
        optimizer.step()
        uses[mine] += 1
        if step % args.log_every == 0 or step == steps:
            dist.all_reduce(loss := loss.detach())
            rate = (step - first_step) * args.batch_size / (time.monotonic() - began)
            progress = {"step": step, "steps": steps, "loss": round(loss.item(), 4)}
            say(json.dumps({**progress, "rate": round(rate, 1), "unit": "images"}))
        if step % args.save_every == 0 or step == steps:
            dist.all_reduce(uses)
            counts += uses
            uses.zero_()
            if LOCAL_RANK == 0:
                state = {"step": step, "counts": counts, "order": args.order}
                state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save_snapshot(args.snapshot, state)
            dist.barrier()
    say(f"{evaluate(model, test_set, device)} after {steps} steps")
    unbroken = torch.cat([batch_of(step, **args.order) for step in range(steps)])
    return torch.equal(counts.cpu(), unbroken.bincount(minlength=TRAIN_IMAGES))


def main() -> None:
    """Join the other ranks, train, and leave in good order."""
    args = parse_args()
    if args.device.type == "cuda":
        torch.cuda.set_device(args.device)
    url = "env://" if "RANK" in os.environ else "tcp://127.0.0.1:0"
    dist.init_process_group(args.backend, url, timedelta(seconds=args.timeout), WORLD_SIZE, RANK)
    is_exact = train(args)
    dist.destroy_process_group()
    time.sleep(0.2)  # gloo's threads need the interpreter to let go (pytorch/pytorch#179291)
    if not is_exact:
        raise SystemExit("not every step counted once; do all ranks have the same arguments?")


if __name__ == "__main__":
    main()
