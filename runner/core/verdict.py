"""How a run ended and why: a fold over its events."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace
from typing import Dict, Iterable, List, Optional, Tuple

from runner.core.events import (
    HURRIED,
    TOLD,
    Ended,
    Event,
    HostLost,
    PortTaken,
    ProgramExited,
    RankExited,
    RankStarted,
    StopAsked,
    Stopping,
)
from runner.core.plan import Plan
from runner.core.states import State

SUCCEEDED, FAILED, STOPPED, LOST, STUCK = "succeeded", "failed", "stopped", "lost", "stuck"


@dataclass(frozen=True)
class Observed:
    """An event, and when it happened on the controller's monotonic clock (seconds)."""

    at: float
    event: Event


@dataclass(frozen=True)
class RankResult:
    """How one rank ended; both None when nobody saw it. `max_rss` in bytes."""

    node: str
    code: Optional[int] = None
    signal: Optional[int] = None
    max_rss: int = 0
    started: bool = False


@dataclass(frozen=True)
class NodeResult:
    """How one node's program (torchrun) and what was left of it ended.

    `survivors` are processes that could not be killed; `ended` is whether the host said, with a
    look at its processes, that nothing else is left.
    """

    code: Optional[int] = None
    signal: Optional[int] = None
    ended: bool = False
    killed: int = 0
    survivors: Tuple[int, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Failure:
    """The first thing that went wrong. `rank` is None when it was not a rank."""

    node: str
    rank: Optional[int]
    what: str


@dataclass(frozen=True)
class Verdict:
    """The end of a run.

    `consequences` counts ranks that failed after the first; `unproven` are hosts that did not
    say that nothing is left.
    """

    state: str
    exit_code: int
    seconds: float
    first_failure: Optional[Failure] = None
    consequences: int = 0
    unproven: Tuple[str, ...] = ()
    nodes: Dict[str, NodeResult] = field(default_factory=dict)
    ranks: Dict[str, RankResult] = field(default_factory=dict)


def fold(plan: Plan, observed: Iterable[Observed], seconds: float) -> Verdict:
    """Return the verdict; the first failure by corrected time wins, the rest is consequence."""
    history = sorted(observed, key=lambda seen: seen.at)
    nodes = {share.node: NodeResult() for share in plan.nodes}
    ranks = {rank: RankResult(share.node) for share in plan.nodes for rank in share.ranks}
    failures: List[Tuple[float, Failure, int]] = []
    stop: Optional[Tuple[float, int]] = None
    asked = False
    for seen in history:
        name, body = seen.event.node, seen.event.body
        if isinstance(body, StopAsked) and body.signal and stop is None:
            stop = (seen.at, body.signal)
        elif isinstance(body, RankExited):
            ranks[body.rank] = RankResult(name, body.code, body.signal, body.max_rss, started=True)
        elif isinstance(body, RankStarted):
            ranks[body.rank] = replace(ranks[body.rank], started=True)
        elif isinstance(body, ProgramExited):
            nodes[name] = replace(nodes[name], code=body.code, signal=body.signal)
        elif isinstance(body, Ended):
            nodes[name] = replace(
                nodes[name],
                ended=body.proven,
                killed=body.killed,
                survivors=body.survivors,
                note=body.reason,
            )
        asked = asked or isinstance(body, StopAsked)
        failure = _failure(seen.event)
        if failure and not (asked and isinstance(body, Stopping)):
            failures.append((seen.at, *failure))
    succeeded = all(result.code == 0 for result in ranks.values())
    first = _first(failures, stop, succeeded)
    lost = {f.node for _, f, code in failures if code == _LOST_CODE}
    unproven = tuple(name for name, result in nodes.items() if not result.ended)
    stuck = [n for n, r in nodes.items() if r.survivors] + [n for n in unproven if n not in lost]
    state, code = _outcome(first, stop, succeeded)
    if stuck or (stop and unproven):
        state, code = STUCK, 5
    return Verdict(
        state=state,
        exit_code=code,
        seconds=seconds,
        first_failure=first[0] if first else None,
        consequences=_consequences(ranks, first[0] if first else None),
        unproven=unproven,
        nodes=nodes,
        ranks={str(rank): result for rank, result in sorted(ranks.items())},
    )


_FAILED_CODE, _LOST_CODE = 1, 4


def _failure(event: Event) -> Optional[Tuple[Failure, int]]:
    body = event.body
    if isinstance(body, RankExited) and not body.ok:
        what = body.error or describe_exit(body.code, body.signal)
        return Failure(event.node, body.rank, what), _FAILED_CODE
    if isinstance(body, ProgramExited) and (body.error or body.code != 0):
        what = body.error or f"torchrun {describe_exit(body.code, body.signal)}"
        return Failure(event.node, None, what), _FAILED_CODE
    if isinstance(body, PortTaken):
        holder = f" (process {body.pids[0]})" if body.pids else ""
        what = f"port {body.port}, reserved for the ranks' meeting, was taken{holder}"
        return Failure(event.node, None, what), _FAILED_CODE
    if (isinstance(body, Stopping) and body.reason not in (TOLD, HURRIED)) or (
        isinstance(body, Ended) and body.state is State.FAILED and body.reason
    ):  # the host's own doing: its supervisor heard of no controller, or died
        return Failure(event.node, None, body.reason), _FAILED_CODE
    if isinstance(body, HostLost):
        return Failure(event.node, None, body.reason), _LOST_CODE
    return None


def _first(
    failures: List[Tuple[float, Failure, int]], stop: Optional[Tuple[float, int]], succeeded: bool
) -> Optional[Tuple[Failure, int]]:
    """The first failure that is not a consequence of the user's own stop.

    torchrun's noise at the end of a run in which every rank succeeded is no failure.
    """
    for at, failure, code in failures:
        if stop and at >= stop[0]:
            return None
        if succeeded and code == _FAILED_CODE:
            continue
        return failure, code
    return None


def _outcome(
    first: Optional[Tuple[Failure, int]], stop: Optional[Tuple[float, int]], succeeded: bool
) -> Tuple[str, int]:
    if stop:
        return STOPPED, 128 + stop[1]
    if first:
        return (LOST if first[1] == _LOST_CODE else FAILED), first[1]
    return (SUCCEEDED, 0) if succeeded else (FAILED, _FAILED_CODE)


def _consequences(ranks: Dict[int, RankResult], first: Optional[Failure]) -> int:
    if first is None:
        return 0
    return sum(
        1
        for rank, result in ranks.items()
        if rank != first.rank and (result.code not in (0, None) or result.signal)
    )


def describe_exit(code: Optional[int], signum: Optional[int]) -> str:
    """Say an exit in words: "exited with 3", "was killed by SIGKILL"."""
    if signum:
        try:
            return f"was killed by {signal.Signals(signum).name}"
        except ValueError:
            return f"was killed by signal {signum}"
    return "ended unseen" if code is None else f"exited with {code}"
