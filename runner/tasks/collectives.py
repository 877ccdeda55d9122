"""Benchmark of torch.distributed on a cluster: bandwidth, slow nodes, and a test under load.

By hand, two ranks on this machine; then one rank on each of two nodes, the first being 10.0.0.1:

    torchrun --standalone --nproc_per_node=2 collectives.py
    torchrun --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 collectives.py --mode pairs
    torchrun --nnodes=2 --node_rank=1 --master_addr=10.0.0.1 collectives.py --mode pairs

bandwidth  per operation and message size: time, algorithm and bus bandwidth as in nccl-tests
pairs      between every two nodes: latency and bandwidth, and which node is slow
smoke      repeated all_reduce with exact results
all        all of these

gloo runs on CPUs, nccl on GPUs. Exit code 1 if a result was wrong. collectives_report.py must be
in the same folder.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # not needed here

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from runner.tasks import collectives_report as report
else:
    sys.path.insert(0, str(Path(__file__).parent))  # the package is not installed on hosts
    import collectives_report as report

RANK = int(os.environ.get("RANK", "0"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
ELEMENT = 4  # bytes of a float32
SMOKE_ELEMENTS = 1_009_000  # 4 MB


def parse_args() -> argparse.Namespace:
    """Read the command line; anything wrong is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--mode",
        choices=("bandwidth", "pairs", "smoke", "all"),
        default="all",
        help="what to do (all)",
    )
    add("--backend", help="gloo or nccl ($DIST_BACKEND, else nccl where there are GPUs)")
    add("--ops", nargs="+", choices=OPS, default=OPS, help="bandwidth: which operations (all)")
    add("--min_bytes", type=size, default="4K", help="bandwidth: smallest message (4K)")
    add("--max_bytes", type=size, default="16M", help="bandwidth: largest message (16M)")
    add("--factor", type=int, default=8, help="bandwidth: from one size to the next (8)")
    add("--pair_bytes", type=size, default="4M", help="pairs: message (4M)")
    add("--iters", type=int, default=20, help="bandwidth, pairs: timed repetitions (20)")
    add("--warmup", type=int, default=5, help="bandwidth, pairs: untimed ones before (5)")
    add("--seconds", type=float, default=20, help="smoke: how long (20)")
    add("--timeout", type=float, default=300, help="seconds an operation may take (300)")
    add("--json", type=Path, metavar="PATH", help="rank 0 writes all results there")
    args = parser.parse_args()

    gpus = torch.cuda.device_count()
    args.backend = args.backend or os.environ.get("DIST_BACKEND") or ("nccl" if gpus else "gloo")
    if args.backend not in ("gloo", "nccl"):
        parser.error(f"--backend or DIST_BACKEND must be gloo or nccl, not {args.backend!r}")
    if args.backend == "nccl" and gpus <= LOCAL_RANK:
        parser.error(f"nccl needs a GPU for local rank {LOCAL_RANK}; this host shows {gpus}")
    for name, least in (("factor", 2), ("iters", 1), ("warmup", 0), ("seconds", 0), ("timeout", 1)):
        if getattr(args, name) < least:
            parser.error(f"--{name} must be at least {least}, not {getattr(args, name)}")
    if args.min_bytes > args.max_bytes:
        parser.error("--min_bytes must not be above --max_bytes")
    return args


def size(text: str) -> int:
    """Read a number of bytes for argparse, which shows this message."""
    try:
        return report.parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def say(*lines: str) -> None:
    """Print on rank 0 only."""
    if RANK == 0:
        print(*lines, sep="\n", flush=True)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def wait_for_all(device: torch.device) -> None:
    """Wait for all ranks and for this rank's device."""
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    synchronize(device)


def gather(mine: object) -> list[Any]:
    """Return what each rank passes."""
    found: list[Any] = [None] * WORLD_SIZE
    dist.all_gather_object(found, mine)
    return found


# bandwidth


def call_of(op: str, elements: int, device: torch.device) -> Callable[[], object]:
    """Return the operation on float32 buffers, the largest of which has `elements` elements."""
    # Newer torch warns of the older names.
    all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    whole = torch.zeros(elements, device=device)
    part = torch.zeros(elements // WORLD_SIZE, device=device)
    other = torch.zeros_like(whole) if op == "all_to_all" else part
    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: all_gather(whole, part),
        "reduce_scatter": lambda: reduce_scatter(part, whole),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "broadcast": lambda: dist.broadcast(whole, src=0),
        "reduce": lambda: dist.reduce(whole, dst=0),
    }[op]


def seconds_of(device: torch.device, call: Callable[[], object], iters: int, warmup: int) -> float:
    """Return the seconds of one call, on average over all calls, on the slowest rank."""
    for _ in range(warmup):
        call()
    wait_for_all(device)
    began = time.perf_counter()
    for _ in range(iters):
        call()
    synchronize(device)  # calls of nccl only queue work; as nccl-tests, wait once for all of them
    taken = torch.tensor([(time.perf_counter() - began) / iters], device=device)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    slowest: list[float] = taken.tolist()
    return slowest[0]


def unavailable(error: Exception) -> str:
    """Return the first line of an error if it says that the backend lacks the operation, or ""."""
    line = (str(error).splitlines() or [""])[0]
    if isinstance(error, torch.AcceleratorError if hasattr(torch, "AcceleratorError") else ()):
        return ""  # CUDA's own "operation not supported" is a failure
    lacks = r"(?i)not (yet )?(support|implement)|unsupported|only implemented|Cannot use ReduceOp"
    return line if re.search(lacks, line) else ""


def bandwidth(device: torch.device, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Time every operation with every size, rounded down to equal parts of whole elements."""
    results = []
    header = ("operation", "size", "time us", "algbw GB/s", "busbw GB/s")
    rows = []
    for op in args.ops:
        for wanted in report.message_sizes(args.min_bytes, args.max_bytes, args.factor):
            elements = max(wanted // ELEMENT // WORLD_SIZE, 1) * WORLD_SIZE
            try:
                call = call_of(op, elements, device)
                seconds = seconds_of(device, call, args.iters, args.warmup)
            except (RuntimeError, ValueError, NotImplementedError) as error:
                if not unavailable(error):
                    raise
                say(f"bandwidth: {op} skipped: {args.backend}: {unavailable(error)}")
                break
            algbw = elements * ELEMENT / seconds
            busbw = algbw * report.bus_factor(op, WORLD_SIZE)
            found = {"operation": op, "bytes": elements * ELEMENT, "seconds": seconds}
            results.append({**found, "algbw": algbw, "busbw": busbw})
            shown = (f"{seconds * 1e6:.1f}", f"{algbw / 1e9:.3f}", f"{busbw / 1e9:.3f}")
            rows.append((op, report.show_size(wanted), *shown))
    say(f"bandwidth: {args.iters} calls each, float32, the slowest of {WORLD_SIZE} ranks counts")
    say(*report.table(header, rows), "")
    return results


# pairs


def find_nodes() -> list[dict[str, Any]]:
    """Return every node's name and its ranks, that of local rank 0 first, in torchrun's order."""
    mine = (int(os.environ.get("GROUP_RANK", "0")), socket.gethostname(), LOCAL_RANK, RANK)
    ranks: dict[tuple[int, str], list[int]] = {}
    for group, host, _, rank in sorted(gather(mine)):
        ranks.setdefault((group, host), []).append(rank)
    hosts = [host for _, host in ranks]
    return [
        {"name": host if hosts.count(host) == 1 else f"{host}#{group}", "ranks": of_node}
        for (group, host), of_node in ranks.items()
    ]


def measure_pair(device: torch.device, peer: int, args: argparse.Namespace) -> dict[str, float]:
    """Measure latency and sending bandwidth with another rank, which does the same.

    The latency is half a round trip of one element. The bandwidth is that of messages one way,
    each of which the other side answers with one element.
    """
    iters: int = args.iters
    token = torch.zeros(1, device=device)
    message = torch.zeros(max(args.pair_bytes // ELEMENT, 1), device=device)

    def pass_on(how: Any, what: torch.Tensor) -> None:
        # As a batch: NCCL makes a communicator for each pair otherwise, and keeps them all.
        for work in dist.batch_isend_irecv([dist.P2POp(how, what, peer)]):
            work.wait()

    def exchange(first: bool, what: torch.Tensor) -> None:
        if first:
            pass_on(dist.isend, what)
            pass_on(dist.irecv, token)
        else:
            pass_on(dist.irecv, what)
            pass_on(dist.isend, token)

    def measure(first: bool, what: torch.Tensor) -> float:
        for _ in range(args.warmup):
            exchange(first, what)
        synchronize(device)
        began = time.perf_counter()
        for _ in range(iters):
            exchange(first, what)
        synchronize(device)
        return (time.perf_counter() - began) / iters

    low = peer > RANK
    latency = measure(low, torch.zeros_like(token)) / 2
    of_low, of_high = measure(low, message), measure(not low, message)
    mine = of_low if low else of_high
    return {"latency": latency, "bandwidth": message.numel() * ELEMENT / mine}


def pairs(device: torch.device, args: argparse.Namespace) -> dict[str, Any]:
    """Measure between one rank of each node and one of each other, disjoint pairs at once."""
    nodes = find_nodes()
    names, leaders = [node["name"] for node in nodes], [node["ranks"][0] for node in nodes]
    mine: dict[int, dict[str, float]] = {}
    for round_ in report.tournament(len(nodes)):
        for one, other in round_:
            if RANK in (leaders[one], leaders[other]):
                peer = other if leaders[one] == RANK else one
                mine[peer] = measure_pair(device, leaders[peer], args)
        wait_for_all(device)
    found = gather(mine)
    matrix = {
        what: [[found[a].get(b, {}).get(what, 0.0) for b in range(len(nodes))] for a in leaders]
        for what in ("bandwidth", "latency")
    }
    elements = max(args.pair_bytes // ELEMENT // WORLD_SIZE, 1) * WORLD_SIZE
    ring = call_of("all_reduce", elements, device)
    seconds = seconds_of(device, ring, args.iters, args.warmup)
    busbw = elements * ELEMENT / seconds * report.bus_factor("all_reduce", WORLD_SIZE)
    say(*report.pairs_tables(names, matrix, report.show_size(args.pair_bytes)))
    say(f"all_reduce of all {WORLD_SIZE} ranks: {seconds * 1e6:.1f} us, {busbw / 1e9:.3f} GB/s", "")
    slow = []
    if len(nodes) > 1:
        shares = report.compare_nodes(names, matrix["bandwidth"])
        slow = [share.name for share in shares if share.verdict()]
    return {"nodes": names, **matrix, "slow": slow, "all_reduce_busbw": busbw}


# smoke


def complain(step: int, got: torch.Tensor, expected: torch.Tensor) -> None:
    """Report the first wrong sum of this rank, in one write."""
    places = (got != expected).nonzero().flatten().tolist()
    first = places[0]
    sys.stderr.write(
        f"rank {RANK} on {socket.gethostname()}: smoke, step {step}: "
        f"element {first} is {got[first].item()}, expected {expected[first].item()} "
        f"({len(places)} of {len(got)} differ)\n"
    )
    sys.stderr.flush()


def smoke_operand(rank: int, device: torch.device) -> torch.Tensor:
    """Return what a rank contributes: small whole numbers, which float32 adds exactly."""
    return (torch.arange(SMOKE_ELEMENTS, device=device) + rank) % 3 + 1.0


def smoke(device: torch.device, seconds: float) -> tuple[bool, dict[str, Any]]:
    """Repeat an all_reduce with new numbers at every step; return whether all sums were right."""
    mine = smoke_operand(RANK, device)
    want = torch.zeros_like(mine)
    for rank in range(WORLD_SIZE):
        want += smoke_operand(rank, device)
    steps = wrong = 0
    inside, over = 0.0, False
    wait_for_all(device)
    began = time.perf_counter()
    while not over:
        times = steps % 5 + 1
        # With the last element rank 0 says that the time is over, so that all stop together.
        late = float(RANK == 0 and time.perf_counter() - began >= seconds)
        got = torch.cat([mine * times, torch.tensor([late], device=device)])
        synchronize(device)
        called = time.perf_counter()
        dist.all_reduce(got)
        synchronize(device)
        inside += time.perf_counter() - called
        steps += 1
        over = bool(got[-1] != 0)
        expected = want * times
        if not torch.equal(got[:-1], expected):
            wrong += 1
            if wrong == 1:
                complain(steps, got[:-1], expected)
    taken = time.perf_counter() - began
    found = gather((steps / taken, inside / steps, wrong))
    nodes = []
    for node in find_nodes():
        rates, calls, wrongs = zip(*(found[rank] for rank in node["ranks"]))
        measured = {"steps_per_second": min(rates), "all_reduce": max(calls), "wrong": sum(wrongs)}
        nodes.append({"node": node["name"], **measured})
    say(
        f"smoke: {steps} times all_reduce of {want.numel() + 1} numbers in {taken:.1f} s",
        *report.smoke_table(nodes),
        "",
    )
    results = {"steps": steps, "seconds": taken, "nodes": nodes}
    return not any(node["wrong"] for node in nodes), results


# The whole run


def run(device: torch.device, args: argparse.Namespace) -> bool:
    """Run the modes of --mode and write their results; return whether no result was wrong."""
    results: dict[str, Any] = {"world_size": WORLD_SIZE, "backend": args.backend}
    results["torch"] = torch.__version__
    right = True
    if args.mode in ("bandwidth", "all"):
        results["bandwidth"] = bandwidth(device, args)
    if args.mode in ("pairs", "all"):
        results["pairs"] = pairs(device, args)
    if args.mode in ("smoke", "all"):
        right, results["smoke"] = smoke(device, args.seconds)
    if args.json and RANK == 0:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return right


def main() -> int:
    """Join the other ranks, run, and leave in good order."""
    args = parse_args()
    device = torch.device("cuda", LOCAL_RANK) if args.backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=args.timeout)
    alone: dict[str, Any] = {}
    if "RANK" not in os.environ:
        store = dist.HashStore()  # type: ignore[attr-defined]
        alone = {"store": store, "rank": 0, "world_size": 1}
    dist.init_process_group(args.backend, timeout=timeout, **alone)
    say(f"world size {WORLD_SIZE}, backend {args.backend}, device {device}", "")
    right = run(device, args)
    # A rank that failed waits for rank 0's report: torchrun stops the others at its end.
    wait_for_all(device)
    dist.destroy_process_group()
    # Gloo's threads let go of their last tensors only now and need the interpreter for it; one
    # that is already shutting down would abort the process (pytorch/pytorch#179291).
    time.sleep(0.2)
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
