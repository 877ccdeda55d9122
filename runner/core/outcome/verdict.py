"""How a run ended and why: a fold over its events."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from runner.core.model.past import Past
from runner.core.outcome.exits import describe_exit
from runner.core.outcome.known_failures import of_another
from runner.core.outcome.membership import Membership, Memberships
from runner.core.planning.build_plan import Plan
from runner.core.protocol.events import (
    Cause,
    Ended,
    Event,
    HostLost,
    Moving,
    PeerLeft,
    PeerLost,
    PortTaken,
    ProgramExited,
    ProgramStarted,
    RankExited,
    RankStarted,
    Stalled,
    StopAsked,
    Stopping,
)
from runner.core.protocol.states import State

SAME_S = 1.0
"""The death of a supervisor and what others see of it lie no further apart."""

SUCCEEDED, FAILED, STOPPED, LOST, STUCK = "succeeded", "failed", "stopped", "lost", "stuck"


@dataclass(frozen=True)
class Observed:
    """An event, and when it happened on the controller's monotonic clock (seconds)."""

    at: float
    event: Event


@dataclass(frozen=True)
class RankResult:
    """How one rank ended; both None when nobody saw it. `max_rss` in bytes.

    `traceback` is what torch's `@record` wrote down of it, `raised` the exception that its log ends
    with; "" for nothing.
    """

    node: str
    code: Optional[int] = None
    signal: Optional[int] = None
    max_rss: int = 0
    started: bool = False
    traceback: str = ""
    raised: str = ""


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
    say that nothing is left; `still_s` is for how long nothing had moved when it ended, in seconds.
    Where torch numbers the ranks, `ranks` are those of the last of all `memberships`. `past` are
    the attempts before the one of which all else tells.
    """

    state: str
    exit_code: int
    seconds: float
    first_failure: Optional[Failure] = None
    consequences: int = 0
    unproven: Tuple[str, ...] = ()
    still_s: float = 0.0
    memberships: int = 0
    nodes: Dict[str, NodeResult] = field(default_factory=dict)
    ranks: Dict[str, RankResult] = field(default_factory=dict)
    past: Tuple[Past, ...] = ()

    def ranks_on(self, node: str) -> Tuple[int, ...]:
        """Return the ranks of a node; where torch numbers them, those it had in the end."""
        return tuple(sorted(int(rank) for rank, end in self.ranks.items() if end.node == node))


def fold(
    plan: Plan, observed: Iterable[Observed], seconds: float, past: Tuple[Past, ...] = ()
) -> Verdict:
    """Return the verdict; the first failure by corrected time wins, the rest is consequence.

    A run that starts once more ends as its last attempt does; `past` are those before it.
    """
    history = sorted(observed, key=lambda seen: seen.at)
    nodes = {share.node: NodeResult() for share in plan.nodes}
    members = _memberships(history) if plan.numbered_by_torch else None
    last = members.last if members else None
    ranks = _ranks(plan, history, last)
    failures: List[Tuple[float, Failure, int]] = []
    consequences: List[Tuple[float, Failure, int]] = []
    told = _told(history)
    hub = _hub(plan, told)
    stop = _stop(history)
    away: Set[str] = set()
    for seen in history:
        name, body = seen.event.node, seen.event.body
        if isinstance(body, PeerLeft):
            away.add(body.peer)
        elif isinstance(body, ProgramStarted):  # once more, where a lost node came back
            away.discard(name)
            nodes[name] = NodeResult()
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
        failure = _failure(seen.event, hub, plan.launcher)
        if name in away or (plan.restarts and _outlived(seen, last)):
            continue
        if failure and not _told_before(seen.event, told):
            failures.append((seen.at, *failure))
        elif failure:
            consequences.append((seen.at, *failure))
    failures = failures or consequences
    expected = (last.world_size if last else 0) or plan.world_size
    enough = len(ranks) == expected or not plan.numbered_by_torch
    succeeded = enough and all(result.code == 0 for result in ranks.values())
    first = None if succeeded and plan.restarts else _first(failures, stop, succeeded)
    first = _cause_of(first, failures, ranks)
    lost = away | {f.node for _, f, code in failures if code == _LOST_CODE}
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
        still_s=_still(history),
        memberships=members.count if members else 0,
        nodes=nodes,
        ranks={str(rank): result for rank, result in sorted(ranks.items())},
        past=past,
    )


def _memberships(history: Iterable[Observed]) -> Memberships:
    members = Memberships()
    for seen in history:
        if isinstance(seen.event.body, RankStarted):
            members.started(seen.event.node, seen.event.body, seen.at)
    return members


def _ranks(
    plan: Plan, history: Iterable[Observed], last: Optional[Membership]
) -> Dict[int, RankResult]:
    """Return how every rank ended: those of the plan, or of the last membership."""
    ranks = {rank: RankResult(share.node) for share in plan.nodes for rank in share.ranks}
    for seen in history:
        name, body = seen.event.node, seen.event.body
        if not isinstance(body, (RankStarted, RankExited)):
            continue
        if last and not last.has(name, body.rank, body.start):
            continue
        if isinstance(body, RankExited):
            end = (body.code, body.signal, body.max_rss)
            exited = RankResult(name, *end, started=True)
            ranks[body.rank] = replace(exited, traceback=body.traceback, raised=body.raised)
        else:
            before = ranks.get(body.rank, RankResult(name))
            ranks[body.rank] = replace(before, started=True)
    return ranks


def _outlived(seen: Observed, last: Optional[Membership]) -> bool:
    """Whether what went wrong did so in a membership that another one followed."""
    body = seen.event.body
    if last is None:
        return False
    if isinstance(body, RankExited):
        return not last.has(seen.event.node, body.rank, body.start)
    return isinstance(body, (HostLost, PeerLost)) and seen.at < last.began


def losses(plan: Plan, history: Sequence[Observed]) -> Dict[str, str]:
    """Return the nodes that were lost, each with why, as far as somebody saw that."""
    hub = _hub(plan, _told(history))
    lost: Dict[str, str] = {}
    for seen in history:
        failure = _failure(seen.event, hub, plan.launcher)
        if failure and failure[1] == _LOST_CODE:
            lost.setdefault(failure[0].node, failure[0].what)
    return lost


def _hub(plan: Plan, told: Mapping[Tuple[str, int], float]) -> str:
    """Return the node of the hub, if it lived to be stopped."""
    hub = plan.nodes[0].node
    return hub if any(name == hub for name, _ in told) else ""


def _still(history: Iterable[Observed]) -> float:
    """Return what the last word of a watchdog was."""
    still_s = 0.0
    for seen in history:
        if isinstance(seen.event.body, Stalled):
            still_s = seen.event.body.seconds
        elif isinstance(seen.event.body, Moving):
            still_s = 0.0
    return still_s


def _stop(history: Iterable[Observed]) -> Optional[Tuple[float, int]]:
    """Return when the user wanted the end, and by which signal; one said elsewhere counts as INT.

    Which of the two was first is no matter of clocks: ours knows the signal.
    """
    asked = [
        (seen.at, seen.event.body.signal)
        for seen in history
        if isinstance(seen.event.body, StopAsked) and seen.event.body.signal
    ]
    told = [
        (seen.at, int(signal.SIGINT))
        for seen in history
        if isinstance(seen.event.body, Stopping) and seen.event.body.cause is Cause.USER
    ]
    if not asked and not told:
        return None
    return min(asked + told)[0], (asked or told)[0][1]


def _told(history: Iterable[Observed]) -> Dict[Tuple[str, int], float]:
    """Return when each node heard that the others stop, on its own clock."""
    told: Dict[Tuple[str, int], float] = {}
    for seen in history:
        event, body = seen.event, seen.event.body
        if isinstance(body, Stopping) and body.cause is not Cause.OWN:
            told.setdefault((event.node, event.attempt), event.mono)
    return told


def _told_before(event: Event, told: Mapping[Tuple[str, int], float]) -> bool:
    """Whether a program or a rank ended when its host was stopping it already.

    One host's clock tells that exactly; between two hosts it may be off by more than the
    milliseconds that a stop takes from one to the other.
    """
    if not isinstance(event.body, (RankExited, ProgramExited)):
        return False
    return event.mono >= told.get((event.node, event.attempt), float("inf"))


_FAILED_CODE, _LOST_CODE = 1, 4


def _failure(event: Event, hub: str, launcher: str) -> Optional[Tuple[Failure, int]]:
    """Return what went wrong by an event; `hub` is that of the run, if it lived to be stopped.

    `launcher` is what starts the ranks.
    """
    body = event.body
    if isinstance(body, RankExited) and not body.ok:
        what = body.error or describe_exit(body.code, body.signal)
        return Failure(event.node, body.rank, what), _FAILED_CODE
    if isinstance(body, ProgramExited) and (body.error or body.code != 0):
        what = body.error or f"{launcher} {describe_exit(body.code, body.signal)}"
        return Failure(event.node, None, what), _FAILED_CODE
    if isinstance(body, PortTaken):
        holder = f" (process {body.pids[0]})" if body.pids else ""
        what = f"port {body.port}, reserved for the ranks' meeting, was taken{holder}"
        return Failure(event.node, None, what), _FAILED_CODE
    if (isinstance(body, Stopping) and body.cause is Cause.OWN) or (
        isinstance(body, Ended) and body.state is State.FAILED and body.reason
    ):  # the host's own doing: its supervisor heard of no controller, or died
        return Failure(event.node, None, body.reason), _FAILED_CODE
    if isinstance(body, (HostLost, PeerLost)):
        node, what = body.peer if isinstance(body, PeerLost) else event.node, body.reason
        if node == hub and event.node != hub:  # it was well, and who says so was cut off
            node, what = event.node or hub, f"out of touch with {hub}: {what}"
        return Failure(node, None, what), _LOST_CODE
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
        lost = code == _LOST_CODE
        return (_own_word(failures, at, failure) if lost else None) or (failure, code)
    return None


def _cause_of(
    first: Optional[Tuple[Failure, int]],
    failures: List[Tuple[float, Failure, int]],
    ranks: Mapping[int, RankResult],
) -> Optional[Tuple[Failure, int]]:
    """The rank that raised, where the first that ended had only noticed it.

    Python says what was raised and then takes down what it holds; meanwhile those who talk to that
    rank may see its connections close, and end before it does. It ended by our signal, or by itself
    before it was told to: what a rank raises on being told says nothing.
    """
    noticed = ranks.get(first[0].rank) if first and first[0].rank is not None else None
    crashed = noticed is None or noticed.signal not in (None, signal.SIGABRT)
    if noticed is None or crashed or not of_another(noticed.raised):
        return first
    themselves = {failure.rank for _, failure, _ in failures}
    for rank, end in sorted(ranks.items(), key=lambda pair: not pair[1].signal):
        if not (end.signal or (end.code and rank in themselves)):
            continue
        if end.raised and not of_another(end.raised):
            what = f"raised {end.raised.splitlines()[0].partition(':')[0]}"
            return Failure(end.node, rank, what), _FAILED_CODE
    return first


def _own_word(
    failures: List[Tuple[float, Failure, int]], at: float, first: Failure
) -> Optional[Tuple[Failure, int]]:
    """What a host said itself at the moment when others lost it: its supervisor died."""
    for when, failure, code in failures:
        own = failure.node == first.node and failure.rank is None and code == _FAILED_CODE
        if own and abs(when - at) < SAME_S:
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
