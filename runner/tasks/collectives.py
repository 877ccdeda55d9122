"""Is torch.distributed right on this cluster, how fast is it, and which node holds it back?

By hand, two ranks on this machine; one on each of two nodes, the first being 10.0.0.1:

    torchrun --standalone --nproc_per_node=2 collectives.py
    torchrun --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 collectives.py --mode pairs
    torchrun --nnodes=2 --node_rank=1 --master_addr=10.0.0.1 collectives.py --mode pairs

check      every operation, with exact results, on every rank
bandwidth  per operation and message size: time, algorithm and bus bandwidth, as nccl-tests has them
pairs      between every two nodes: latency and bandwidth, and which node is slow
smoke      all_reduce with exact results for some time
all        all of these

gloo works on CPUs here, nccl on GPUs. Exit code 1 if a result was wrong. The files
collectives_checks.py and collectives_report.py have to lie next to this one.
"""

from __future__ import annotations

import argparse
import json
import os
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
    from runner.tasks import collectives_checks as checks
    from runner.tasks import collectives_report as report
else:
    sys.path.insert(0, str(Path(__file__).parent))  # on a host there is no package of this name
    import collectives_checks as checks
    import collectives_report as report

RANK = int(os.environ.get("RANK", "0"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))

MODES = ("check", "bandwidth", "pairs", "smoke")
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
ELEMENT = 4  # bytes of a float32
SHOWN = 20  # wrong results that rank 0 tells of; each rank tells its own
SMOKE_TILES = 1000  # times 1009 elements: 4 MB


def parse_args() -> argparse.Namespace:
    """Read the command line; anything wrong is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--mode", choices=(*MODES, "all"), default="all", help="what to do (all)")
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
    """Rank 0 speaks for all."""
    if RANK == 0:
        print(*lines, sep="\n", flush=True)


def complain(line: str) -> None:
    """Any rank tells of a wrong result at once, in one write."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


# check


def check(here: checks.Here) -> tuple[bool, list[dict[str, Any]]]:
    """Carry out every check; return whether all went well on all ranks, and each one's result."""
    done = []
    for item in checks.all_checks():
        wrong, skipped = checks.perform(here, item)
        done.append((item, wrong, skipped))
        if wrong:
            complain(wrong)
    # By the store: an operation that is broken could not tell of it.
    here.store.set(f"checked/{RANK}", json.dumps([wrong for _, wrong, _ in done]))
    if RANK != 0:
        return not any(wrong for _, wrong, _ in done), []
    of_ranks = [json.loads(here.store.get(f"checked/{rank}")) for rank in range(WORLD_SIZE)]
    results = [
        {
            "operation": item.operation,
            "dtype": item.dtype,
            "skipped": skipped,
            "wrong": [wrong[index] for wrong in of_ranks if wrong[index]],
        }
        for index, (item, _, skipped) in enumerate(done)
    ]
    told = [wrong for result in results for wrong in result["wrong"]]
    say(*report.check_table(results, WORLD_SIZE), "")
    failed = sum(bool(result["wrong"]) for result in results)
    left_out = sum(bool(result["skipped"]) for result in results)
    say(
        f"check: {len(results) - failed - left_out} exact on all {WORLD_SIZE} ranks, "
        f"{left_out} skipped, {failed} wrong",
        *told[:SHOWN],
        *([f"and {len(told) - SHOWN} more"] if len(told) > SHOWN else []),
        "",
    )
    return failed == 0, results


# bandwidth


def call_of(op: str, elements: int, device: torch.device) -> Callable[[], object]:
    """Return the operation on float32 buffers of which the larger has so many elements."""
    whole = torch.zeros(elements, device=device)
    part = torch.zeros(elements // WORLD_SIZE, device=device)
    other = torch.zeros_like(whole) if op == "all_to_all" else part
    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: checks.gather_single(whole, part),
        "reduce_scatter": lambda: checks.scatter_single(part, whole),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "broadcast": lambda: dist.broadcast(whole, src=0),
        "reduce": lambda: dist.reduce(whole, dst=0),
    }[op]


def seconds_of(here: checks.Here, call: Callable[[], object], iters: int, warmup: int) -> float:
    """Return the seconds of one call, on average over all calls, on the slowest rank."""
    for _ in range(warmup):
        call()
    checks.wait_for_all(here)
    began = time.perf_counter()
    for _ in range(iters):
        call()
    synchronize(here)  # calls of nccl only queue work; as nccl-tests, wait once for all of them
    taken = torch.tensor([(time.perf_counter() - began) / iters], device=here.device)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    slowest: list[float] = taken.tolist()
    return slowest[0]


def synchronize(here: checks.Here) -> None:
    """Wait until the device has done what it was given."""
    if here.device.type == "cuda":
        torch.cuda.synchronize(here.device)


def bandwidth(here: checks.Here, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Time every operation with every size, rounded down to equal parts of whole elements."""
    results = []
    header = ("operation", "size", "time us", "algbw GB/s", "busbw GB/s")
    rows = []
    for op in args.ops:
        for wanted in report.message_sizes(args.min_bytes, args.max_bytes, args.factor):
            elements = max(wanted // ELEMENT // WORLD_SIZE, 1) * WORLD_SIZE
            try:
                call = call_of(op, elements, here.device)
                seconds = seconds_of(here, call, args.iters, args.warmup)
            except (RuntimeError, ValueError, NotImplementedError) as error:
                if not checks.unavailable(error):
                    raise
                say(f"bandwidth: {op} skipped: {args.backend}: {checks.unavailable(error)}")
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
    found: list[Any] = [None] * WORLD_SIZE
    group = int(os.environ.get("GROUP_RANK", "0"))
    dist.all_gather_object(found, (group, socket.gethostname(), LOCAL_RANK, RANK))
    ranks: dict[tuple[int, str], list[int]] = {}
    for group, host, _, rank in sorted(found):
        ranks.setdefault((group, host), []).append(rank)
    hosts = [host for _, host in ranks]
    return [
        {"name": host if hosts.count(host) == 1 else f"{host}#{group}", "ranks": of_node}
        for (group, host), of_node in ranks.items()
    ]


def measure_pair(here: checks.Here, peer: int, args: argparse.Namespace) -> dict[str, float]:
    """Measure with another rank, which does the same: latency, and what this rank sends at.

    The latency is half a round trip of one element. The bandwidth is that of messages one way,
    each of which the other side answers with one element.
    """
    iters: int = args.iters
    token = torch.zeros(1, device=here.device)
    message = torch.zeros(max(args.pair_bytes // ELEMENT, 1), device=here.device)

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
        synchronize(here)
        began = time.perf_counter()
        for _ in range(iters):
            exchange(first, what)
        synchronize(here)
        return (time.perf_counter() - began) / iters

    low = here.rank < peer
    latency = measure(low, torch.zeros_like(token)) / 2
    of_low, of_high = measure(low, message), measure(not low, message)
    mine = of_low if low else of_high
    return {"latency": latency, "bandwidth": message.numel() * ELEMENT / mine}


def pairs(here: checks.Here, args: argparse.Namespace) -> dict[str, Any]:
    """Measure between one rank of each node and one of each other, disjoint pairs at once."""
    nodes = find_nodes()
    names, leaders = [node["name"] for node in nodes], [node["ranks"][0] for node in nodes]
    mine: dict[int, dict[str, float]] = {}
    for round_ in report.tournament(len(nodes)):
        for one, other in round_:
            if here.rank in (leaders[one], leaders[other]):
                peer = other if here.rank == leaders[one] else one
                mine[peer] = measure_pair(here, leaders[peer], args)
        checks.wait_for_all(here)
    found: list[Any] = [None] * WORLD_SIZE
    dist.all_gather_object(found, mine)
    matrix = {
        what: [[found[a].get(b, {}).get(what, 0.0) for b in range(len(nodes))] for a in leaders]
        for what in ("bandwidth", "latency")
    }
    elements = max(args.pair_bytes // ELEMENT // WORLD_SIZE, 1) * WORLD_SIZE
    ring = call_of("all_reduce", elements, here.device)
    seconds = seconds_of(here, ring, args.iters, args.warmup)
    busbw = elements * ELEMENT / seconds * report.bus_factor("all_reduce", WORLD_SIZE)
    say(*report.pairs_tables(names, matrix, report.show_size(args.pair_bytes)))
    say(f"all_reduce of all {WORLD_SIZE} ranks: {seconds * 1e6:.1f} us, {busbw / 1e9:.3f} GB/s", "")
    slow = []
    if len(nodes) > 1:
        shares = report.compare_nodes(names, matrix["bandwidth"])
        slow = [share.name for share in shares if share.verdict()]
    return {"nodes": names, **matrix, "slow": slow, "all_reduce_busbw": busbw}


# smoke


def smoke(here: checks.Here, seconds: float) -> tuple[bool, dict[str, Any]]:
    """Repeat an all_reduce, with new numbers at every step; return whether all were right."""
    mine = checks.operands(here, "SUM", [RANK], 0, checks.COUNT)[0].float().repeat(SMOKE_TILES)
    want = checks.reduced(here, "SUM", list(range(WORLD_SIZE))).float().repeat(SMOKE_TILES)
    steps = wrong = 0
    inside, over = 0.0, False
    checks.wait_for_all(here)
    began = time.perf_counter()
    while not over:
        times = steps % 5 + 1
        # The last element is rank 0's word that the time is over, so that all stop together.
        late = float(RANK == 0 and time.perf_counter() - began >= seconds)
        got = torch.cat([mine * times, torch.tensor([late], device=here.device)])
        synchronize(here)
        called = time.perf_counter()
        dist.all_reduce(got)
        synchronize(here)
        inside += time.perf_counter() - called
        steps += 1
        over = bool(got[-1] != 0)
        if differs := checks.difference(got[:-1], want * times):
            wrong += 1
            if wrong == 1:
                complain(f"rank {RANK} on {socket.gethostname()}: smoke, step {steps}: {differs}")
    taken = time.perf_counter() - began
    found: list[Any] = [None] * WORLD_SIZE
    dist.all_gather_object(found, (steps / taken, inside / steps, wrong))
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


# All of it


def run(here: checks.Here, args: argparse.Namespace) -> bool:
    """Do what --mode says, and write it down; return whether no result was wrong."""
    modes = MODES if args.mode == "all" else (args.mode,)
    results: dict[str, Any] = {"world_size": WORLD_SIZE, "backend": args.backend}
    results["torch"] = torch.__version__
    right = True
    for mode in modes:
        if mode == "check":
            right, results[mode] = check(here)
        elif mode == "bandwidth":
            results[mode] = bandwidth(here, args)
        elif mode == "pairs":
            results[mode] = pairs(here, args)
        else:
            steady, results[mode] = smoke(here, args.seconds)
            right = right and steady
    if args.json and RANK == 0:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return right


def main() -> int:
    """Join the other ranks, work with them, and part in good order."""
    args = parse_args()
    device = torch.device("cuda", LOCAL_RANK) if args.backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=args.timeout)
    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    if "RANK" in os.environ:
        store, _, _ = next(iter(dist.rendezvous("env://", timeout=timeout)))  # type: ignore[attr-defined]
    dist.init_process_group(
        args.backend, store=store, rank=RANK, world_size=WORLD_SIZE, timeout=timeout
    )
    say(f"world size {WORLD_SIZE}, backend {args.backend}, device {device}", "")
    store = dist.PrefixStore("collectives", store)  # type: ignore[attr-defined]
    here = checks.Here(RANK, WORLD_SIZE, device, store)
    right = run(here, args)
    # Whoever fails waits for rank 0 to tell all there is to tell: torchrun ends the others then.
    if RANK == 0:
        here.store.set("told", "1")
    here.store.wait(["told"])
    dist.destroy_process_group()
    # Gloo's threads let go of their last tensors only now and need the interpreter for it; one
    # that is already shutting down would abort the process (pytorch/pytorch#179291).
    time.sleep(0.2)
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
