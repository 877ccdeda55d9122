r"""Small steps by however many ranks there are: it goes on where it was when nodes come and go.

By hand, two nodes at least and four at most, each of which may leave and come back; on every node:

    torchrun --nnodes=2:4 --nproc_per_node=1 --max_restarts=10 --rdzv_backend=c10d \
        --rdzv_endpoint=10.0.0.1:29400 --rdzv_id=toy elastic_toy.py --steps 100

It knows nothing of who starts it. A step is finished once every node has it in its snapshot, so
that whoever is left goes on after it: no finished step is done again, and none is left out. The
snapshots lie in one folder, which may be every node's own or one that all share; at each start the
newest that any rank finds is everybody's. There `steps.jsonl` of the node of rank 0 has a line for
each finished step. It ends with 1 if a step is missing or was counted twice.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SNAPSHOT, STEPS = "snapshot.pt", "steps.jsonl"


@dataclass
class State:
    """What the steps came to.

    Attributes:
        total: The sum of their numbers, by all-reduce: each counts once.
        history: Per finished step its number, and by how many ranks; int64 of shape (steps, 2).
    """

    total: torch.Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))
    history: torch.Tensor = field(default_factory=lambda: torch.zeros((0, 2), dtype=torch.int64))

    @property
    def step(self) -> int:
        """The last one that is finished, 0 for none."""
        return len(self.history)


def main() -> int:
    """Do the steps that are left; return the exit code."""
    args = parsed()
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout_s))
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = Path(args.snapshots)
    folder.mkdir(parents=True, exist_ok=True)
    state = newest(load(folder))
    say(f"rank {rank} of {world} begins after step {state.step} of {args.steps}")
    if rank == 0:
        write_steps(folder, state)
    while state.step < args.steps:
        was_restarted = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
        if rank == world - 1 and not was_restarted and args.fail and Path(args.fail).exists():
            raise ValueError(f"rank {rank} was told to fail")
        hurry = args.hurry and Path(args.hurry).exists()
        take_step(state, world, 0 if hurry else args.step_seconds)
        if os.environ["LOCAL_RANK"] == "0":
            save(folder, state)
        dist.barrier()
        if rank == 0:
            append_step(folder, state)
        say(f"step {state.step} of {args.steps} finished by {world} ranks")
    dist.barrier()
    dist.destroy_process_group()
    return 0 if whole(state) else 1


def parsed() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--step_seconds", type=float, default=0.2, help="how long a step takes")
    parser.add_argument("--hurry", default="", help="a file; once it exists, steps take no time")
    parser.add_argument("--fail", default="", help="a file; once it exists, the last rank fails")
    parser.add_argument("--snapshots", default="snapshots", help="a folder, shared or not")
    parser.add_argument("--timeout_s", type=float, default=60.0, help="of one collective operation")
    return parser.parse_args()


def take_step(state: State, world: int, seconds: float) -> None:
    """Do one step together."""
    number = state.step + 1
    time.sleep(seconds)
    share = torch.tensor([number / world], dtype=torch.float64)
    dist.all_reduce(share)
    state.total += share.round()
    state.history = torch.cat([state.history, torch.tensor([[number, world]])])


def load(folder: Path) -> State:
    """Return what the last snapshot here has, an empty state where there is none."""
    try:
        kept = torch.load(folder / SNAPSHOT, weights_only=True)
    except FileNotFoundError:
        return State()
    return State(kept["total"], kept["history"])


def save(folder: Path, state: State) -> None:
    """Replace the snapshot, whole or not at all, also where other nodes write the same."""
    aside = folder / f".{socket.gethostname()}-{os.getpid()}.new"
    with aside.open("wb") as file:
        torch.save({"total": state.total, "history": state.history}, file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(folder / SNAPSHOT)


def newest(own: State) -> State:
    """Return the state of the rank that is furthest; the same on every rank."""
    steps = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(steps, torch.tensor([own.step]))
    furthest = max(range(len(steps)), key=lambda rank: int(steps[rank]))
    if dist.get_rank() != furthest:
        own = State(history=torch.zeros((int(steps[furthest]), 2), dtype=torch.int64))
    dist.broadcast(own.total, furthest)
    if own.step:
        dist.broadcast(own.history, furthest)
    return own


def write_steps(folder: Path, state: State) -> None:
    """Write a line per finished step: another node's rank 0 may have done some of them."""
    aside = folder / f".{STEPS}.new"
    aside.write_text("".join(line(*map(int, step)) for step in state.history), encoding="ascii")
    aside.replace(folder / STEPS)


def append_step(folder: Path, state: State) -> None:
    """Add the line of the last finished step."""
    with (folder / STEPS).open("a", encoding="ascii") as file:
        file.write(line(*map(int, state.history[-1])))


def line(step: int, ranks: int) -> str:
    """Return the line of one step."""
    return json.dumps({"step": step, "ranks": ranks}) + "\n"


def whole(state: State) -> bool:
    """Whether every step is in the history and in the sum, once."""
    counted = state.history[:, 0].tolist() == list(range(1, state.step + 1))
    return counted and int(state.total) == state.step * (state.step + 1) // 2


def say(text: str) -> None:
    """Print one line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
