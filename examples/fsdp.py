"""FSDP2: parameters, gradients and optimizer sharded over all ranks by `fully_shard`.

By hand, two ranks on this machine; one on each of two nodes, the first being 10.0.0.1:

    torchrun --standalone --nproc_per_node=2 fsdp.py --checkpoint state
    torchrun --standalone --nproc_per_node=4 fsdp.py --resume state --steps 200
    torchrun --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 fsdp.py
    torchrun --nnodes=2 --node_rank=1 --master_addr=10.0.0.1 fsdp.py

A rank keeps its part of each layer. A layer is put together just before it computes and taken apart
after; gradients are averaged and split in one operation, reduce-scatter. Each rank writes its own
part of a checkpoint, and any number of ranks reads it: the folder must be on a disk that all nodes
share, which a start finds out. It is written to DIR/new; when it is whole, rank 0 renames it to
DIR/save-N, and only then deletes the one before it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
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
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
except ImportError:
    lacks = f"{torch.__version__}, has no torch.distributed.fsdp.fully_shard: use 2.6 or newer"
    sys.stderr.write(f"{Path(__file__).name}: error: this torch, {lacks}\n")
    raise SystemExit(2) from None
from torch.distributed.device_mesh import init_device_mesh

RANK = int(os.environ.get("RANK", "0"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
LOCAL_WORLD_SIZE = int(os.environ.get("LOCAL_WORLD_SIZE", LOCAL_RANK + 1))

FEATURES, WIDTH, HIDDEN, BLOCKS, CLASSES = 16, 64, 256, 4, 4


def parse_args() -> argparse.Namespace:
    """Read the command line; anything wrong is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, description="train in shards")
    add = parser.add_argument
    add("--steps", type=int, default=100, help="of the optimizer, also after --resume (100)")
    add("--batch_size", type=int, default=96, help="samples per step of all ranks (96)")
    add("--lr", type=float, default=0.003, help="learning rate (0.003)")
    add("--seed", type=int, default=0, help="of weights and data (0)")
    add("--mixed_precision", action="store_true", help="compute in bfloat16; the rest is float32")
    add("--checkpoint", type=Path, metavar="DIR", help="all ranks write it at the end")
    add("--resume", type=Path, metavar="DIR", help="go on from there, with any number of ranks")
    add("--log_every", type=int, default=10, metavar="N", help="steps (10)")
    add("--backend", help="nccl on GPUs or gloo on CPUs ($DIST_BACKEND, else by the GPUs)")
    args = parser.parse_args()

    gpus = torch.cuda.device_count()
    found = "nccl" if gpus >= LOCAL_WORLD_SIZE else "gloo"
    args.backend = args.backend or os.environ.get("DIST_BACKEND") or found
    args.device = torch.device(f"cuda:{LOCAL_RANK}" if args.backend == "nccl" else "cpu")
    if min(args.steps, args.batch_size, args.log_every) < 1:
        parser.error("--steps, --batch_size and --log_every must be at least 1")
    if args.batch_size % WORLD_SIZE:
        parser.error(f"--batch_size {args.batch_size} must be a multiple of the {WORLD_SIZE} ranks")
    if args.backend not in ("gloo", "nccl"):
        parser.error(f"--backend or DIST_BACKEND must be gloo or nccl, not {args.backend!r}")
    if args.backend == "nccl" and gpus <= LOCAL_RANK:
        parser.error(f"nccl needs a GPU for local rank {LOCAL_RANK}; this host shows {gpus}")
    if args.backend == "gloo" and not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        parser.error(f"torch {torch.__version__} averages wrongly over gloo: nccl or a newer one")
    if args.resume and not (last_save(args.resume) / ".metadata").is_file():
        parser.error(f"--resume: no checkpoint in {args.resume}, which all nodes must share")
    return args


def build_model(seed: int) -> nn.Sequential:
    """Return the whole model; its weights follow from the seed."""
    torch.manual_seed(seed)
    up, down = (WIDTH, HIDDEN), (HIDDEN, WIDTH)
    blocks = (nn.Sequential(nn.Linear(*up), nn.Tanh(), nn.Linear(*down)) for _ in range(BLOCKS))
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), *blocks, nn.Linear(WIDTH, CLASSES))


def shard(model: nn.Sequential, args: argparse.Namespace) -> None:
    """Split each block's parameters over all ranks, then what is left of the model's."""
    mesh = init_device_mesh(args.device.type, (WORLD_SIZE,))
    policy = MixedPrecisionPolicy(torch.bfloat16 if args.mixed_precision else None, torch.float32)
    for module in (*(part for part in model if isinstance(part, nn.Sequential)), model):
        sharded: Any = fully_shard(module, mesh=mesh, mp_policy=policy)
        if args.backend == "gloo":  # which has summed in place of a mean (pytorch/pytorch#162338)
            sharded.set_force_sum_reduction_for_comms(True)


def load_batch(step: int, args: argparse.Namespace) -> Tuple[Tensor, Tensor]:
    """Return a step's samples and labels: which of the first four features is the largest?"""
    generator = torch.Generator().manual_seed(args.seed * 10**6 + step)
    samples = torch.randn(args.batch_size, FEATURES, generator=generator)
    return samples, samples[:, :CLASSES].argmax(1)


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> Dict[str, Any]:
    """Return what a checkpoint holds: of each tensor this rank's part and its place."""
    # Torch makes the state of a fresh optimizer by a step, which counts: only to be replaced.
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer, "step": 0, "loss": math.nan}


def last_save(folder: Path) -> Path:
    """Return the newest checkpoint in a folder, or the folder, which may be one itself."""
    return max(folder.glob("save-" + 6 * "[0-9]"), default=folder)


def save(state: Dict[str, Any], folder: Path, *, trial: bool = False) -> None:
    """Write a checkpoint, then, unless on trial, put it in place of the last."""
    new, last = folder / "new", last_save(folder)
    if RANK == 0:
        shutil.rmtree(new, ignore_errors=True)  # of a training that was cut off, or on trial
    dist.barrier()
    dcp.save(state, checkpoint_id=new)  # type: ignore[attr-defined]
    if not (new / ".metadata").is_file():
        raise FileNotFoundError(f"there is no {new}, which all nodes must share")
    dist.barrier()
    if RANK == 0 and not trial:
        number = 0 if last == folder else int(last.name[5:])
        new.rename(folder / f"save-{number + 1:06}")
        if number:
            shutil.rmtree(last)


def train(args: argparse.Namespace) -> None:
    """Train; rank 0 prints the mean loss of all ranks."""
    model = build_model(args.seed).to(args.device)
    shard(model, args)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    done, mean = 0, math.nan
    if args.checkpoint:  # what cannot be written, or is not shared, shall fail now
        save({"step": 0}, args.checkpoint, trial=True)
    if args.resume:
        state = snapshot(model, optimizer)
        dcp.load(state, checkpoint_id=last_save(args.resume))  # type: ignore[attr-defined]
        states = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(model, optimizer, **states)
        done, mean = state["step"], state["loss"]
    began = time.monotonic()
    for step in range(done + 1, args.steps + 1):
        mine = [part[RANK::WORLD_SIZE].to(args.device) for part in load_batch(step, args)]
        loss = cross_entropy(model(mine[0]).float(), mine[1])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % args.log_every == 0 or step == args.steps:
            dist.all_reduce(total := loss.detach())
            mean = total.item() / WORLD_SIZE
            rate = round((step - done) * args.batch_size / (time.monotonic() - began), 1)
            progress = {"step": step, "steps": args.steps, "loss": round(mean, 6)}
            if RANK == 0:
                print(json.dumps({**progress, "rate": rate, "unit": "samples"}), flush=True)
    done = max(done, args.steps)
    if args.checkpoint:
        save({**snapshot(model, optimizer), "step": done, "loss": mean}, args.checkpoint)
    if RANK == 0:
        print(f"loss {mean:.4f} after {done} steps", flush=True)


def main() -> None:
    """Join the other ranks, train, and leave in good order."""
    args = parse_args()
    if args.device.type == "cuda":
        torch.cuda.set_device(args.device)
    store = None if "RANK" in os.environ else dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(args.backend, store=store, rank=RANK, world_size=WORLD_SIZE)
    try:
        train(args)
    except (dcp.CheckpointException, OSError) as error:  # type: ignore[attr-defined]
        failures = getattr(error, "failures", {RANK: [error]})  # of CheckpointException: by rank
        line = next(f"checkpoint, rank {rank}: {why[0]}" for rank, why in failures.items())
        sys.stderr.write(f"{Path(__file__).name}: error: {line.splitlines()[0]}\n")
        os._exit(2)
    dist.destroy_process_group()
    # Gloo's threads let go of their last tensors only now and need the interpreter for it; one
    # that is already shutting down would abort the process (pytorch/pytorch#179291).
    time.sleep(0.2)


if __name__ == "__main__":
    main()
