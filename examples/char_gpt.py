"""A small GPT that learns to write, character by character: plain torch, on CPUs and GPUs.

By hand, two ranks on this machine; two on each of two nodes, the first being 10.0.0.1:

    torchrun --standalone --nproc_per_node=2 char_gpt.py
    torchrun --nnodes=2 --node_rank=0 --nproc_per_node=2 --master_addr=10.0.0.1 char_gpt.py
    torchrun --nnodes=2 --node_rank=1 --nproc_per_node=2 --master_addr=10.0.0.1 char_gpt.py

The batch of a step follows from seed and step, and every rank takes its share of it: so the loss
is the same on any number of ranks, but for the order in which floating point numbers are added.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
import warnings
import zlib
from pathlib import Path

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # not needed here

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import OneCycleLR

RANK = int(os.environ.get("RANK", "0"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
SHIPPED_TEXT = Path(__file__).with_name("as_you_like_it.txt.gz")  # Shakespeare
HELD_OUT = 0.1  # of the text, its end: for the test
TEST_BATCHES = 8


def parse_args() -> argparse.Namespace:
    """Read the command line; anything wrong is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, description="A small GPT")
    add = parser.add_argument
    add("--data", type=Path, default=SHIPPED_TEXT, help="text (.gz or not) that every rank reads")
    add("--steps", type=int, default=300, help="optimizer steps (300)")
    add("--batch_size", type=int, default=24, help="sequences per step of all ranks (24)")
    add("--context", type=int, default=64, help="characters that a prediction may look at (64)")
    add("--layers", type=int, default=4, help="transformer blocks (4)")
    add("--heads", type=int, default=4, help="attention heads of each (4)")
    add("--width", type=int, default=128, help="of the model, a multiple of the heads (128)")
    add("--lr", type=float, default=3e-3, help="highest learning rate (0.003)")
    add("--seed", type=int, default=0, help="of weights, batches and the sample (0)")
    add("--backend", help="nccl on GPUs or gloo on CPUs ($DIST_BACKEND, else by the GPUs)")
    add("--log_every", type=int, default=10, help="steps between two lines of progress (10)")
    add("--sample", type=int, default=300, help="characters to write at the end (300)")
    args = parser.parse_args()
    gpus = torch.cuda.device_count()
    found = "nccl" if gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")) else "gloo"
    args.backend = args.backend or os.environ.get("DIST_BACKEND") or found
    args.device = torch.device(f"cuda:{LOCAL_RANK}" if args.backend == "nccl" else "cpu")
    for name in ("steps", "batch_size", "context", "layers", "heads", "width", "log_every"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, not {getattr(args, name)}")
    if args.batch_size % WORLD_SIZE or args.width % args.heads or not args.lr > 0:
        parser.error(f"--batch_size must divide by {WORLD_SIZE} ranks, --width by heads; --lr > 0")
    if args.backend not in ("gloo", "nccl"):
        parser.error(f"--backend or DIST_BACKEND must be gloo or nccl, not {args.backend!r}")
    if args.backend == "nccl" and gpus <= LOCAL_RANK:
        parser.error(f"nccl needs a GPU for local rank {LOCAL_RANK}; this host shows {gpus}")
    try:
        packed = args.data.read_bytes()
        args.text = (gzip.decompress(packed) if args.data.suffix == ".gz" else packed).decode()
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        parser.error(f"--data {args.data}: {getattr(error, 'strerror', None) or error}")
    if int(len(args.text) * HELD_OUT) <= args.context:
        parser.error(f"--data {args.data}: {len(args.text)} characters are too few for --context")
    return args


class Block(nn.Module):
    """Transformer block: causal self-attention, then a feed-forward network, both residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, time, head width)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x.add(self.down(gelu(self.up(self.norm2(x)))))


class CharGPT(nn.Module):
    """Decoder-only transformer with learned positions; the embedding is the output layer, too."""

    def __init__(self, symbols: int, context: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.symbol, self.position = nn.Embedding(symbols, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, symbols: Tensor) -> Tensor:
        """Map (batch, time) to logits (batch, time, symbols)."""
        x = self.blocks(self.symbol(symbols) + self.position.weight[: symbols.shape[1]])
        return linear(self.norm(x), self.symbol.weight)


def batch_loss(model: nn.Module, text: Tensor, seed: int, args: argparse.Namespace) -> Tensor:
    """Return the loss of this rank's share of a batch; the batch is the same on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - args.context, (args.batch_size,), generator=generator)
    mine = starts.view(WORLD_SIZE, -1)[RANK].tolist()
    rows = torch.stack([text[start : start + args.context + 1] for start in mine]).to(args.device)
    with torch.autocast(args.device.type, torch.bfloat16, args.device.type == "cuda"):
        return cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def mean_of_ranks(value: Tensor) -> float:
    """Return the mean of a number over all ranks."""
    total = value.detach().clone()
    dist.all_reduce(total)
    return float(total) / WORLD_SIZE


@torch.no_grad()
def write(model: nn.Module, args: argparse.Namespace) -> list[int]:
    """Let the model write symbols, each drawn by the predicted probabilities."""
    written = [0]
    for _ in range(args.sample):
        context = torch.tensor([written[-args.context :]], device=args.device)
        written.append(int(torch.multinomial(model(context)[0, -1].softmax(0), 1)))
    return written[1:]


def train(args: argparse.Namespace) -> None:
    """Train, test, and write a sample; losses are in nats per character."""
    alphabet = sorted(set(args.text))
    numbers = dict(zip(alphabet, range(len(alphabet))))
    text = torch.tensor([numbers[symbol] for symbol in args.text])
    cut = len(text) - int(len(text) * HELD_OUT)
    train_text, test_text = text[:cut], text[cut:]
    torch.manual_seed(args.seed)
    model = CharGPT(len(alphabet), args.context, args.width, args.heads, args.layers)
    parallel = DistributedDataParallel(model.to(args.device), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, betas=(0.9, 0.99))
    rise = max(0.1, 2 / (args.steps + 1))  # a tenth of the steps, and at least one
    schedule = OneCycleLR(optimizer, args.lr, args.steps + 1, pct_start=rise)
    began, tokens, rate = time.monotonic(), args.batch_size * args.context, 0.0
    for step in range(args.steps):
        loss = batch_loss(parallel, train_text, args.seed * 10**6 + step, args)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        done = step + 1
        if done % args.log_every == 0 or done == args.steps:
            line = {"step": done, "steps": args.steps, "loss": round(mean_of_ranks(loss), 4)}
            rate = done * tokens / (time.monotonic() - began)
            say(json.dumps({**line, "rate": round(rate, 1), "unit": "tokens"}))
    with torch.no_grad():
        losses = [batch_loss(model, test_text, -1 - batch, args) for batch in range(TEST_BATCHES)]
    test_loss = mean_of_ranks(torch.stack(losses).mean())
    if RANK == 0 and args.sample:
        say("\n" + "".join(alphabet[symbol] for symbol in write(model, args)))
    say(f"test loss {test_loss:.4f} after {args.steps} steps, {rate:.0f} tokens per second")


def say(line: str) -> None:
    """Print on rank 0 only."""
    if RANK == 0:
        print(line, flush=True)


def main() -> None:
    """Join the other ranks, train, and leave in good order."""
    args = parse_args()
    if args.device.type == "cuda":
        torch.cuda.set_device(args.device)
    url = "env://" if "RANK" in os.environ else "tcp://127.0.0.1:0"
    dist.init_process_group(args.backend, url, rank=RANK, world_size=WORLD_SIZE)
    say(f"world size {WORLD_SIZE}, backend {args.backend}, device {args.device}")
    train(args)
    dist.destroy_process_group()
    time.sleep(0.2)  # gloo's threads need the interpreter to let go (pytorch/pytorch#179291)


if __name__ == "__main__":
    main()
