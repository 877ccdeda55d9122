"""Benchmark of torch.distributed on a cluster: bandwidth, slow nodes, and a test under load.

By hand, two ranks on this machine; then one rank on each of two nodes, the first being 10.0.0.1:

    torchrun --standalone --nproc_per_node=2 collectives.py
    torchrun --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 collectives.py --mode pairs
    torchrun --nnodes=2 --node_rank=1 --master_addr=10.0.0.1 collectives.py --mode pairs

bandwidth  per operation and size: time, algorithm and bus bandwidth as in nccl-tests, wrong numbers
pairs      between every two nodes: bandwidth and latency, and which node is slow
smoke      repeated all_reduce of 4 MB with exact results
all        all of these

nccl where there are GPUs, unless DIST_BACKEND=gloo is set. Exit code 1 if a number was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
import time
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Callable, Optional, Sequence

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # not needed here

import torch
import torch.distributed as dist

RANK = int(os.environ.get("RANK", "0"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
NODE = os.environ.get("RUNNER_NODE", socket.gethostname())

BUS_FACTORS = {
    "all_reduce": 2 * (WORLD_SIZE - 1) / WORLD_SIZE,
    "all_gather": (WORLD_SIZE - 1) / WORLD_SIZE,
    "reduce_scatter": (WORLD_SIZE - 1) / WORLD_SIZE,
    "broadcast": 1.0,
    "all_to_all": (WORLD_SIZE - 1) / WORLD_SIZE,
}
"""What algorithm bandwidth is multiplied by, as in doc/PERFORMANCE.md of NVIDIA's nccl-tests."""

TIMEOUT = timedelta(minutes=5)  # of an operation
ELEMENT = 4  # bytes of a float32
SIZE_FACTOR = 8  # from one size to the next
SMOKE_ELEMENTS = 1_000_000
SMOKE_STEPS = 10  # from one look at the clock to the next
SLOW_BELOW = 0.6  # share of the others' median bandwidth; equal links differ by less in practice
LARGEST_MATRIX = 16  # nodes; a larger one fits no screen, --json has it
LACKS = r"(?i)not (yet )?(support|implement)|unsupported|only implemented"


def parse_args() -> argparse.Namespace:
    """Read the command line; anything wrong is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--mode", choices=("bandwidth", "pairs", "smoke", "all"), default="all", help="(all)")
    add("--ops", nargs="+", choices=BUS_FACTORS, default=[*BUS_FACTORS], help="bandwidth: (all)")
    add("--min_bytes", type=size, default="4K", help="bandwidth: smallest message (4K)")
    add("--max_bytes", type=size, default="16M", help="bandwidth: largest message (16M)")
    add("--pair_bytes", type=size, default="4M", help="pairs: message (4M)")
    add("--iters", type=int, default=20, help="bandwidth, pairs: timed repetitions (20)")
    add("--seconds", type=float, default=20, help="smoke: how long (20)")
    add("--json", type=Path, metavar="PATH", help="rank 0 writes all results there")
    args = parser.parse_args()
    gpus = torch.cuda.device_count()
    args.backend = os.environ.get("DIST_BACKEND") or ("nccl" if gpus else "gloo")
    if args.backend not in ("gloo", "nccl"):
        parser.error(f"DIST_BACKEND must be gloo or nccl, not {args.backend!r}")
    if args.backend == "nccl" and gpus <= LOCAL_RANK:
        parser.error(f"nccl needs a GPU for local rank {LOCAL_RANK}; this host shows {gpus}")
    if "RANK" not in os.environ:
        parser.error("there is no RANK: start it by torchrun, as --help shows")
    if args.iters < 1:
        parser.error(f"--iters must be at least 1, not {args.iters}")
    return args


def size(text: str) -> int:
    """Read a number of bytes: `4096`, `64K`, `1M`, `2G`, in powers of 1024."""
    found = re.fullmatch(r"([1-9]\d*)([KMG]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 4096, 64K or 1G")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]


def say(*lines: str) -> None:
    """Print on rank 0 only."""
    if RANK == 0:
        print(*lines, sep="\n", flush=True)


def gather(mine: object) -> list[Any]:
    """Return what each rank passes."""
    found: list[Any] = [None] * WORLD_SIZE
    dist.all_gather_object(found, mine)
    return found


def wait_for_device(device: torch.device) -> None:
    if device.type == "cuda":  # whose operations are only queued
        torch.cuda.synchronize(device)


def seconds_of(call: Callable[[], object], device: torch.device, iters: int) -> float:
    """Return the seconds of one call, on average."""
    for _ in range(max(1, iters // 4)):  # to warm up
        call()
    wait_for_device(device)
    began = time.perf_counter()
    for _ in range(iters):
        call()
    wait_for_device(device)  # as nccl-tests, once for all calls
    return (time.perf_counter() - began) / iters


def count_wrong(what: str, got: torch.Tensor, expected: torch.Tensor) -> int:
    """Return how many numbers are wrong; the first is told in one write."""
    places = (got != expected).nonzero().flatten().tolist()
    if places:
        first = places[0]
        sys.stderr.write(
            f"rank {RANK} on {NODE}: {what}: element {first} is {got[first].item()}, "
            f"expected {expected[first].item()} ({len(places)} of {len(got)} differ)\n"
        )
        sys.stderr.flush()
    return len(places)


def operation(
    name: str, elements: int, device: torch.device
) -> tuple[Callable[[], object], torch.Tensor, torch.Tensor]:
    """Return a call, its result, and what that is to be after the first call.

    The largest buffer has `elements` elements: their number is the size, as in nccl-tests.
    """
    # Newer torch warns of the older names.
    all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    share = elements // WORLD_SIZE
    ranks = torch.arange(WORLD_SIZE, device=device, dtype=torch.float32)
    blocks = ranks.repeat_interleave(share)  # rank n's block holds n
    whole = torch.full_like(blocks, RANK)
    part = torch.full_like(blocks[:share], RANK)
    if name == "all_reduce":
        return lambda: dist.all_reduce(whole), whole, torch.full_like(whole, float(ranks.sum()))
    if name == "broadcast":
        last = WORLD_SIZE - 1
        return lambda: dist.broadcast(whole, src=last), whole, torch.full_like(whole, last)
    if name == "all_gather":
        return lambda: all_gather(whole, part), whole, blocks
    if name == "reduce_scatter":
        return lambda: reduce_scatter(part, blocks), part, torch.full_like(part, RANK * WORLD_SIZE)
    given = blocks + RANK * WORLD_SIZE
    return lambda: dist.all_to_all_single(whole, given), whole, blocks * WORLD_SIZE + RANK


def bandwidth(device: torch.device, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Check and time every operation with every size, in equal parts for the ranks."""
    results = []
    say(f"bandwidth: {args.iters} calls each, float32, the slowest of {WORLD_SIZE} ranks counts")
    say("operation           bytes      time us  algbw GB/s  busbw GB/s  wrong")
    for name in args.ops:
        wanted = args.min_bytes
        while wanted <= args.max_bytes:
            elements = max(wanted // ELEMENT // WORLD_SIZE, 1) * WORLD_SIZE
            wanted *= SIZE_FACTOR
            call, result, expected = operation(name, elements, device)
            try:
                call()
            except (RuntimeError, NotImplementedError) as error:
                if args.backend == "nccl" or not re.search(LACKS, str(error)):
                    raise
                say(f"{name} skipped: {args.backend}: {str(error).splitlines()[0]}")
                break
            nbytes = elements * ELEMENT
            wrong = sum(gather(count_wrong(f"{name} of {nbytes} bytes", result, expected)))
            result.zero_()  # sums of sums would leave what float32 holds
            seconds = max(gather(seconds_of(call, device, args.iters)))
            algbw = nbytes / seconds
            busbw = algbw * BUS_FACTORS[name]
            row = {"operation": name, "bytes": nbytes, "seconds": seconds}
            results.append({**row, "algbw": algbw, "busbw": busbw, "wrong": wrong})
            rates = f"{seconds * 1e6:>11.1f}  {algbw / 1e9:>10.3f}  {busbw / 1e9:>10.3f}"
            say(f"{name:<14}  {nbytes:>9}  {rates}  {wrong:>5}")
    say("")
    return results


def tournament(players: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs in which everyone meets everyone once.

    The circle method: one stays, the others move on by a seat; with an odd number one pauses.
    """
    seats = [*range(players + players % 2)]
    rounds = []
    for _ in seats[1:]:
        opposite = zip(seats[: len(seats) // 2], reversed(seats))
        rounds.append([pair for pair in opposite if max(pair) < players])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def measure_pair(peer: int, device: torch.device, args: argparse.Namespace) -> tuple[float, float]:
    """Return bandwidth to another rank, and latency; the other does the same at the same time.

    The other side answers each message with one element. The latency is half such a round trip.
    """
    token = torch.zeros(1, device=device)

    def exchange(steps: Sequence[tuple[Any, torch.Tensor]]) -> None:
        for step in steps:
            # As a batch: NCCL makes a communicator for each pair otherwise, and keeps them all.
            for work in dist.batch_isend_irecv([dist.P2POp(*step, peer)]):
                work.wait()

    mine = []
    for elements in (1, max(args.pair_bytes // ELEMENT, 1)):
        message = torch.zeros(elements, device=device)
        for sender in sorted((RANK, peer)):
            steps = [(dist.isend, message), (dist.irecv, token)]
            if sender == peer:
                steps = [(dist.irecv, message), (dist.isend, token)]
            seconds = seconds_of(partial(exchange, steps), device, args.iters)
            if sender == RANK:
                mine.append(seconds)
    return args.pair_bytes / mine[1], mine[0] / 2


def share_of_others(node: int, bandwidths: Sequence[Sequence[float]]) -> Optional[float]:
    """Return what a node sends or receives, as a share of the median between all others.

    `bandwidths[i][j]` is what i sends to j. Medians keep a slow node from making its peers look
    slow. This takes three nodes, fewer than half of them slow; None of fewer.
    """
    others = [other for other in range(len(bandwidths)) if other != node]
    rest = [bandwidths[a][b] for a in others for b in others if a != b]
    if not rest:
        return None
    sends = median([bandwidths[node][other] for other in others])
    receives = median([bandwidths[other][node] for other in others])
    return min(sends, receives) / median(rest)


def pairs(device: torch.device, args: argparse.Namespace) -> dict[str, Any]:
    """Measure between one rank of each node and one of each other, disjoint pairs at once."""
    ranks = gather((NODE, LOCAL_RANK))
    leaders = [rank for rank, (_, local_rank) in enumerate(ranks) if local_rank == 0]
    names = [ranks[leader][0] for leader in leaders]
    mine = [(0.0, 0.0)] * len(names)
    for round_ in tournament(len(names)):
        for one, other in round_:
            if RANK in (leaders[one], leaders[other]):
                peer = other if leaders[one] == RANK else one
                mine[peer] = measure_pair(leaders[peer], device, args)
        gather(None)  # the next round begins when all have ended this one
    found = gather(mine)
    bandwidths = [[each[0] for each in found[leader]] for leader in leaders]
    latencies = [[each[1] for each in found[leader]] for leader in leaders]
    if len(names) <= LARGEST_MATRIX:
        say(f"pairs: bandwidth in GB/s, the row sends {args.pair_bytes} bytes to the column")
        say(*matrix(names, bandwidths, 1e9, 3), "", "pairs: latency in us, half a round trip")
        say(*matrix(names, latencies, 1e-6, 1), "")
    slow = []
    for node, name in enumerate(names):
        share = share_of_others(node, bandwidths)
        if share is not None and share < SLOW_BELOW:
            slow.append(name)
            say(f"{name} is slow: {share:.2g} of the others' median")
    if share_of_others(0, bandwidths) is None:
        say("a third node is needed to tell which one is slow")
    elif not slow:
        say("no node is slow")
    say("")
    return {"nodes": names, "bandwidth": bandwidths, "latency": latencies, "slow": slow}


def matrix(names: list[str], values: list[list[float]], unit: float, digits: int) -> list[str]:
    """Return rows of equal columns, `-` for what was not measured."""
    width = max(8, *map(len, names))
    rows = [["", *names]]
    for name, row in zip(names, values):
        rows.append([name, *(f"{value / unit:.{digits}f}" if value else "-" for value in row)])
    return ["  ".join(cell.rjust(width) for cell in row) for row in rows]


def smoke(device: torch.device, args: argparse.Namespace) -> dict[str, Any]:
    """Repeat an all_reduce for a time, each with its check."""
    steps = 0
    wrong = 0
    began = time.perf_counter()
    while gather(time.perf_counter() - began < args.seconds)[0]:  # all stop when rank 0 does
        for _ in range(SMOKE_STEPS):
            steps += 1
            call, result, expected = operation("all_reduce", SMOKE_ELEMENTS, device)
            call()
            wrong = wrong or count_wrong(f"smoke, step {steps}", result, expected)
    seconds = time.perf_counter() - began
    wrong = sum(gather(wrong))
    say(f"smoke: {steps} times all_reduce of 4 MB in {seconds:.1f} s, {wrong} wrong numbers")
    return {"steps": steps, "seconds": seconds, "wrong": wrong}


def main() -> int:
    """Join the other ranks, run, and leave in good order."""
    args = parse_args()
    device = torch.device("cpu")
    if args.backend == "nccl":
        device = torch.device("cuda", LOCAL_RANK)
        torch.cuda.set_device(device)
    dist.init_process_group(args.backend, timeout=TIMEOUT)
    say(f"world size {WORLD_SIZE}, backend {args.backend}, device {device}", "")
    results: dict[str, Any] = {"world_size": WORLD_SIZE, "backend": args.backend}
    results["torch"] = torch.__version__
    wrong = 0
    if args.mode in ("bandwidth", "all"):
        results["bandwidth"] = bandwidth(device, args)
        wrong += sum(row["wrong"] for row in results["bandwidth"])
    if args.mode in ("pairs", "all"):
        results["pairs"] = pairs(device, args)
    if args.mode in ("smoke", "all"):
        results["smoke"] = smoke(device, args)
        wrong += results["smoke"]["wrong"]
    if args.json and RANK == 0:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    # A rank that failed waits for rank 0's report: torchrun stops the others at its end.
    gather(None)
    dist.destroy_process_group()
    # Gloo's threads let go of their last tensors only now and need the interpreter for it; one
    # that is already shutting down would abort the process (pytorch/pytorch#179291).
    time.sleep(0.2)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
