"""Every operation of torch.distributed on data whose result is known to the last bit.

For `collectives.py`. All numbers are whole and so small that any order of adding them up is exact,
in bfloat16 too. Each result differs from element to element and depends on every rank.
"""

from __future__ import annotations

import functools
import re
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable, Iterator, List, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

COUNT = 1009  # elements of a message: a prime, so that nothing divides it into equal parts
LARGE = 1 << 20  # elements where backends have changed to other algorithms
ADDENDS = 64  # ranks that add to one element: at most 64 x 3, and bfloat16 is exact up to 256
FACTORS = 32  # ranks that double one element: 2^32 at most
DTYPES = (torch.float32, torch.int64, torch.bfloat16)
ARITHMETIC = ("SUM", "PRODUCT", "MIN", "MAX")
BITWISE = ("BAND", "BOR", "BXOR")
BARRIER_WAIT = timedelta(seconds=60)

Results = Iterator[Tuple[Any, Any]]  # what came out, and what should have
Run = Callable[["Here"], Results]


@dataclass(frozen=True)
class Here:
    """One rank's place among the others, and what it works with."""

    rank: int
    size: int
    device: torch.device
    store: Any  # reaches the other ranks by another way than the operations under test

    @property
    def last(self) -> int:
        """The last rank: the root where there is one, since 0 could be taken for granted."""
        return self.size - 1

    @property
    def after(self) -> int:
        """The next rank in the ring."""
        return (self.rank + 1) % self.size

    @property
    def before(self) -> int:
        """The previous rank in the ring."""
        return (self.rank - 1) % self.size

    def message(
        self, dtype: torch.dtype, source: int, target: int = 0, count: int = COUNT
    ) -> Tensor:
        """Return what one rank has for another; above 32 bits where the type has more."""
        number = (torch.arange(count, device=self.device) + 31 * source + 17 * target) % 251
        return (number * ((1 << 40) + 1) if dtype == torch.int64 else number).to(dtype)

    def empty(self, dtype: torch.dtype, count: int = COUNT) -> Tensor:
        """Return room for a message, with what no message has in it."""
        return torch.full((count,), -1, dtype=dtype, device=self.device)


def operands(here: Here, op: str, ranks: List[int], begin: int, count: int) -> Tensor:
    """Return what some ranks put into a reduction: int64 [ranks, count], from element `begin`."""
    element = torch.arange(begin, begin + count, device=here.device)
    rank = torch.tensor(ranks, device=here.device)[:, None]
    turn = (rank - element) % here.size
    number = (rank + element) % 3 + 1
    if op in ("SUM", "AVG"):
        return torch.where(turn < ADDENDS, number, 0)
    if op == "PRODUCT":
        return torch.where((turn < FACTORS) & (number > 1), 2, 1)
    if op in BITWISE:
        bit = torch.ones_like(number) << (rank + element) % 61
        return ~bit if op == "BAND" else bit
    return (31 * rank + element) % 251


def reduced(here: Here, op: str, ranks: List[int], begin: int = 0, count: int = COUNT) -> Tensor:
    """Return what the reduction of `operands` has to give: int64 [count]; of AVG the sum."""
    rows = operands(here, op, ranks, begin, count)
    folds: dict[str, Callable[[], Tensor]] = {
        "PRODUCT": lambda: rows.prod(0),
        "MIN": lambda: rows.amin(0),
        "MAX": lambda: rows.amax(0),
        "BAND": lambda: functools.reduce(torch.bitwise_and, rows),
        "BOR": lambda: functools.reduce(torch.bitwise_or, rows),
        "BXOR": lambda: functools.reduce(torch.bitwise_xor, rows),
    }
    return folds.get(op, lambda: rows.sum(0))()


def settled(here: Here, op: str, got: Tensor) -> Tensor:
    """Make AVG a sum again, which is exact: NCCL multiplies by 1/n before it adds, and rounds."""
    return (got * here.size).round() if op == "AVG" else got


# Collectives


def broadcast(here: Here, dtype: torch.dtype) -> Results:
    """From the first rank and from the last."""
    for root in sorted({0, here.last}):
        got = here.message(dtype, here.rank)
        dist.broadcast(got, src=root)
        yield got, here.message(dtype, root)


def all_reduce(here: Here, dtype: torch.dtype, op: str) -> Results:
    """Small, and for sums also large."""
    ranks = list(range(here.size))
    want = reduced(here, op, ranks).to(dtype)
    mine = operands(here, op, [here.rank], 0, COUNT)[0].to(dtype)
    for times in (1, LARGE // COUNT) if op == "SUM" else (1,):
        got = mine.repeat(times)
        dist.all_reduce(got, op=getattr(dist.ReduceOp, op))
        yield settled(here, op, got), want.repeat(times)


def reduce(here: Here, dtype: torch.dtype) -> Results:
    """Only the root's result is defined."""
    got = operands(here, "SUM", [here.rank], 0, COUNT)[0].to(dtype)
    dist.reduce(got, dst=here.last)
    if here.rank == here.last:
        yield got, reduced(here, "SUM", list(range(here.size))).to(dtype)


def all_gather(here: Here, dtype: torch.dtype) -> Results:
    """Into a list of tensors."""
    got = [here.empty(dtype) for _ in range(here.size)]
    dist.all_gather(got, here.message(dtype, here.rank))
    yield torch.cat(got), torch.cat([here.message(dtype, source) for source in range(here.size)])


def all_gather_into_tensor(here: Here, dtype: torch.dtype) -> Results:
    """Into one tensor."""
    got = here.empty(dtype, COUNT * here.size)
    gather_single(got, here.message(dtype, here.rank))
    yield got, torch.cat([here.message(dtype, source) for source in range(here.size)])


def gather(here: Here, dtype: torch.dtype) -> Results:
    """Only the root gets something."""
    root = here.rank == here.last
    got = [here.empty(dtype) for _ in range(here.size)] if root else None
    dist.gather(here.message(dtype, here.rank), got, dst=here.last)
    if got:
        want = [here.message(dtype, source) for source in range(here.size)]
        yield torch.cat(got), torch.cat(want)


def scatter(here: Here, dtype: torch.dtype) -> Results:
    """Only the root gives something."""
    root = here.rank == here.last
    parts = [here.message(dtype, here.last, target) for target in range(here.size)]
    got = here.empty(dtype)
    dist.scatter(got, parts if root else None, src=here.last)
    yield got, parts[here.rank]


def reduce_scatter(here: Here, dtype: torch.dtype) -> Results:
    """From a list of tensors."""
    mine = operands(here, "SUM", [here.rank], 0, COUNT * here.size)[0].to(dtype)
    got = here.empty(dtype)
    dist.reduce_scatter(got, list(torch.split(mine, COUNT)))
    yield got, reduced(here, "SUM", list(range(here.size)), COUNT * here.rank).to(dtype)


def reduce_scatter_tensor(here: Here, dtype: torch.dtype, op: str) -> Results:
    """From one tensor."""
    mine = operands(here, op, [here.rank], 0, COUNT * here.size)[0].to(dtype)
    got = here.empty(dtype)
    scatter_single(got, mine, op=getattr(dist.ReduceOp, op))
    want = reduced(here, op, list(range(here.size)), COUNT * here.rank)
    yield settled(here, op, got), want.to(dtype)


def all_to_all(here: Here, dtype: torch.dtype) -> Results:
    """A list of tensors into another."""
    got = [here.empty(dtype) for _ in range(here.size)]
    dist.all_to_all(got, [here.message(dtype, here.rank, target) for target in range(here.size)])
    yield torch.cat(got), torch.cat([here.message(dtype, s, here.rank) for s in range(here.size)])


def all_to_all_single(here: Here, dtype: torch.dtype) -> Results:
    """Equal parts of one tensor."""
    mine = torch.cat([here.message(dtype, here.rank, target) for target in range(here.size)])
    got = here.empty(dtype, len(mine))
    dist.all_to_all_single(got, mine)
    yield got, torch.cat([here.message(dtype, s, here.rank) for s in range(here.size)])


def all_to_all_single_uneven(here: Here, dtype: torch.dtype) -> Results:
    """Parts of 0, 7 and 14 elements."""

    def part(source: int, target: int) -> Tensor:
        return here.message(dtype, source, target, 7 * ((source + 2 * target) % 3))

    everyone = range(here.size)
    mine, want = ([part(here.rank, r) for r in everyone], [part(r, here.rank) for r in everyone])
    got = here.empty(dtype, sum(map(len, want)))
    dist.all_to_all_single(got, torch.cat(mine), [len(w) for w in want], [len(m) for m in mine])
    yield got, torch.cat(want)


def subgroup(here: Here, dtype: torch.dtype) -> Results:
    """Even and odd ranks add up for themselves, at the same time."""
    halves = [list(range(half, here.size, 2)) for half in range(min(2, here.size))]
    groups = [dist.new_group(ranks) for ranks in halves]  # by all ranks, also those not in it
    ranks, group = halves[here.rank % 2], groups[here.rank % 2]
    got = operands(here, "SUM", [here.rank], 0, COUNT)[0].to(dtype)
    dist.all_reduce(got, group=group)
    yield got, reduced(here, "SUM", ranks).to(dtype)
    dist.destroy_process_group(group)


# From one rank to another, around the ring; every second rank sends first, so that nobody waits in
# a circle, and so that NCCL sees the calls of a pair in the same order on both sides.


def send_recv(here: Here, dtype: torch.dtype) -> Results:
    """The blocking ones."""
    got, mine = here.empty(dtype), here.message(dtype, here.rank, here.after)
    steps: list[Callable[[], Any]] = [
        lambda: dist.send(mine, here.after),
        lambda: dist.recv(got, here.before),
    ]
    for step in steps if here.rank % 2 == 0 else reversed(steps):
        step()
    yield got, here.message(dtype, here.before, here.rank)


def isend_irecv(here: Here, dtype: torch.dtype) -> Results:
    """Those that return at once."""
    got, mine = here.empty(dtype), here.message(dtype, here.rank, here.after)
    steps: list[Callable[[], Any]] = [
        lambda: dist.isend(mine, here.after),
        lambda: dist.irecv(got, here.before),
    ]
    for work in [step() for step in (steps if here.rank % 2 == 0 else reversed(steps))]:
        work.wait()
    yield got, here.message(dtype, here.before, here.rank)


def batch_isend_irecv(here: Here, dtype: torch.dtype) -> Results:
    """Both ways around the ring in one batch."""
    got = [here.empty(dtype), here.empty(dtype)]
    batch = []
    for room, target, source in zip(got, (here.after, here.before), (here.before, here.after)):
        mine = here.message(dtype, here.rank, target)
        batch += [dist.P2POp(dist.isend, mine, target), dist.P2POp(dist.irecv, room, source)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    want = [here.message(dtype, source, here.rank) for source in (here.before, here.after)]
    yield torch.cat(got), torch.cat(want)


# What has no dtype


def barrier(here: Here) -> Results:
    """Nobody leaves before all have come, by the store's count."""
    yield from arrivals(here, "barrier", lambda: wait_for_all(here))


def monitored_barrier(here: Here) -> Results:
    """The one that can name who is missing."""
    yield from arrivals(here, "monitored", lambda: dist.monitored_barrier(timeout=BARRIER_WAIT))


def arrivals(here: Here, name: str, wait: Callable[[], object]) -> Results:
    """Count who came before `wait` returned."""
    here.store.add(name, 1)
    wait()
    yield here.store.add(name, 0), here.size


def wait_for_all(here: Here) -> None:
    """Do what `barrier` does, and wait for the device too."""
    if here.device.type == "cuda":
        dist.barrier(device_ids=[here.device.index])
        torch.cuda.synchronize()
    else:
        dist.barrier()


def thing(source: int, target: int = 0) -> dict[str, Any]:
    """Return an object of another size for every rank."""
    return {"source": source, "target": target, "text": "x" * (source % 100)}


def broadcast_object_list(here: Here) -> Results:
    """From the last rank."""
    got: list[Any] = [thing(here.last), "all"] if here.rank == here.last else [None, None]
    dist.broadcast_object_list(got, src=here.last)
    yield got, [thing(here.last), "all"]


def all_gather_object(here: Here) -> Results:
    """Everyone's to everyone."""
    got: list[Any] = [None] * here.size
    dist.all_gather_object(got, thing(here.rank))
    yield got, [thing(source) for source in range(here.size)]


def gather_object(here: Here) -> Results:
    """Everyone's to the last rank."""
    got: Any = [None] * here.size if here.rank == here.last else None
    dist.gather_object(thing(here.rank), got, dst=here.last)
    yield got, [thing(source) for source in range(here.size)] if got else None


def scatter_object_list(here: Here) -> Results:
    """One for each, from the last rank."""
    got: list[Any] = [None]
    parts = [thing(here.last, target) for target in range(here.size)]
    dist.scatter_object_list(got, parts if here.rank == here.last else None, src=here.last)
    yield got, [parts[here.rank]]


# All of them


@dataclass(frozen=True)
class Check:
    """One operation with one dtype.

    Attributes:
        operation: Its name.
        dtype: Such as "int64"; "" for what has none.
        run: Carries it out and yields what came out and what should have.
        ranks: How many it takes at least.
    """

    operation: str
    dtype: str
    run: Run
    ranks: int = 1


def all_checks() -> Iterator[Check]:
    """Yield every check, in the same order on every rank."""
    moving: list[Callable[[Here, torch.dtype], Results]] = [
        *(broadcast, reduce, all_gather, all_gather_into_tensor, gather, scatter, reduce_scatter),
        *(all_to_all, all_to_all_single, all_to_all_single_uneven, subgroup),
    ]
    ring: list[Callable[[Here, torch.dtype], Results]] = [send_recv, isend_irecv, batch_isend_irecv]
    for reduction in (all_reduce, reduce_scatter_tensor):
        kinds = [(op, dtype) for op in ARITHMETIC for dtype in DTYPES]
        kinds += [("AVG", torch.float32), *((op, torch.int64) for op in BITWISE)]
        for op, dtype in kinds:
            run = functools.partial(reduction, dtype=dtype, op=op)
            yield Check(f"{reduction.__name__} {op}", _name(dtype), run)
    for action in (*moving, *ring):
        for dtype in DTYPES:
            run = functools.partial(action, dtype=dtype)  # type: ignore[call-arg]
            yield Check(action.__name__, _name(dtype), run, 2 if action in ring else 1)
    for plain in (
        *(barrier, monitored_barrier, broadcast_object_list, all_gather_object),
        *(gather_object, scatter_object_list),
    ):
        yield Check(plain.__name__, "", plain)


def perform(here: Here, check: Check) -> tuple[str, str]:
    """Carry a check out; return what is wrong, and why it cannot be done here ("" for neither).

    Raises:
        Exception: The operation failed in another way than by not being there.
    """
    if here.size < check.ranks:
        return "", f"takes {check.ranks} ranks"
    try:
        found = [difference(got, want) for got, want in check.run(here)]
    except (RuntimeError, ValueError, NotImplementedError) as error:
        reason = unavailable(error)
        if not reason:
            raise
        return "", f"{dist.get_backend()}: {reason}"
    label = f"{check.operation} {check.dtype}".strip()
    where = f"rank {here.rank} on {socket.gethostname()}: {label}"
    return next((f"{where}: {text}" for text in found if text), ""), ""


def unavailable(error: Exception) -> str:
    """Return the first line of an error that says that a backend has no such operation, or ""."""
    line = (str(error).splitlines() or [""])[0]
    if isinstance(error, torch.AcceleratorError if hasattr(torch, "AcceleratorError") else ()):
        return ""  # CUDA's own "operation not supported" is a failure
    lacks = r"(?i)not (yet )?(support|implement)|unsupported|only implemented|Cannot use ReduceOp"
    return line if re.search(lacks, line) else ""


def difference(got: Any, want: Any) -> str:
    """Say where two results differ; "" if nowhere."""
    if not isinstance(got, Tensor):
        return "" if got == want else f"got {got!r}, expected {want!r}"
    if torch.equal(got, want):
        return ""
    places = (got != want).nonzero().flatten().tolist()
    first = places[0]
    return (
        f"element {first} is {got[first].item()}, expected {want[first].item()} "
        f"({len(places)} of {len(want)} differ)"
    )


def gather_single(output: Tensor, mine: Tensor) -> None:
    """`all_gather_into_tensor`, by the name that this torch does not warn of."""
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(output, mine)


def scatter_single(output: Tensor, mine: Tensor, op: Any = dist.ReduceOp.SUM) -> None:
    """`reduce_scatter_tensor`, by the name that this torch does not warn of."""
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(output, mine, op=op)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).rpartition(".")[2]
