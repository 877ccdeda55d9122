"""One device, the starting point: a small network learns 1,797 real handwritten digits.

    python single.py

data_parallel.py and ddp.py are the same training on several devices and end with the same loss:
`diff single.py ddp.py` shows what that takes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
import warnings
from pathlib import Path

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # not needed here

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
TRAIN_IMAGES = 1437  # every fifth image of the file is for the test


def parse_args() -> argparse.Namespace:
    """Read the command line; anything wrong is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, description="train on one device")
    add = parser.add_argument
    add("--epochs", type=int, default=10, help="passes over the training set (10)")
    add("--batch_size", type=int, default=48, help="images per step (48)")
    add("--lr", type=float, default=0.1, help="learning rate (0.1)")
    add("--seed", type=int, default=0, help="of weights and order (0)")
    add("--log_every", type=int, default=20, help="steps from one progress line to the next (20)")
    args = parser.parse_args()

    args.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if min(args.epochs, args.log_every) < 1:
        parser.error("--epochs and --log_every must be at least 1")
    if not args.lr > 0:
        parser.error(f"--lr must be above 0, not {args.lr}")
    if not 1 <= args.batch_size <= TRAIN_IMAGES:
        parser.error(f"--batch_size must be from 1 to {TRAIN_IMAGES}")
    if WORLD_SIZE > 1:
        parser.error(f"this trains in one process and was started as {WORLD_SIZE}; ddp.py uses all")
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


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def train(args: argparse.Namespace) -> None:
    """Train and test; print the progress and the result."""
    device = args.device
    train_set, test_set = load_digits()
    generator = torch.Generator()
    sampler = RandomSampler(train_set, generator=generator)
    batches = DataLoader(train_set, args.batch_size, sampler=sampler, drop_last=True)
    step, steps = 0, args.epochs * len(batches)

    torch.manual_seed(args.seed)
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)

    began = time.monotonic()
    for epoch in range(args.epochs):
        generator.manual_seed(args.seed + epoch)  # a new order
        for images, labels in batches:
            optimizer.zero_grad()
            loss = cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            if step % args.log_every == 0 or step == steps:
                rate = step * args.batch_size / (time.monotonic() - began)
                progress = {"step": step, "steps": steps, "loss": round(loss.item(), 4)}
                say(json.dumps({**progress, "rate": round(rate, 1), "unit": "images"}))
    say(f"{evaluate(model, test_set, device)} after {step} steps")


def main() -> int:
    """Train on one device."""
    args = parse_args()
    say(f"one process, device {args.device}")
    train(args)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
