"""How a run ended and why: a fold over its events."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from runner.core.model.past import PastAttempt
from runner.core.outcome.exits import describe_exit
from runner.core.outcome.known_failures import is_secondary_error
from runner.core.outcome.membership import Membership, Memberships
from runner.core.planning.build_plan import Plan
from runner.core.protocol.events import (
    Ended,
    Event,
    HostLost,
    PeerDeparted,
    PeerLost,
    PortTaken,
    ProgramExited,
    ProgramStarted,
    ProgressResumed,
    RankExited,
    RankStarted,
    Stalled,
    StopCause,
    Stopping,
    StopRequested,
)
from runner.core.protocol.states import State

SAME_EVENT_S = 1.0
"""The death of a supervisor and what others see of it lie no further apart."""

SUCCEEDED, FAILED, STOPPED, LOST, STUCK = "succeeded", "failed", "stopped", "lost", "stuck"


@dataclass(frozen=True)
class TimedEvent:
    """An event, and when it happened on the controller's monotonic clock (seconds)."""

    at: float
    event: Event


@dataclass(frozen=True)
class RankResult:
    """How one rank ended; both None when nobody saw it. `max_rss` in bytes.

    `traceback` is what torch's `@record` wrote down of it, `exception` the exception that its log
    ends with; "" for nothing.
    """

    node: str
    code: Optional[int] = None
    signal: Optional[int] = None
    max_rss: int = 0
    started: bool = False
    traceback: str = ""
    exception: str = ""


@dataclass(frozen=True)
class NodeResult:
    """How one node's program (torchrun) and what was left of it ended.

    `survivors` are processes that could not be killed; `end_verified` is whether the host said,
    with a look at its processes, that nothing else is left.
    """

    code: Optional[int] = None
    signal: Optional[int] = None
    end_verified: bool = False
    killed: int = 0
    survivors: Tuple[int, ...] = ()
    end_reason: str = ""


@dataclass(frozen=True)
class Failure:
    """The first thing that went wrong. `rank` is None when it was not a rank."""

    node: str
    rank: Optional[int]
    reason: str


@dataclass(frozen=True)
class Verdict:
    """The end of a run.

    `consequences` counts ranks that failed after the first; `unverified` are hosts that did not
    say that nothing is left; `stalled_s` is for how long nothing had moved when it ended, in
    seconds. Where torch numbers the ranks, `ranks` are those of the last of all `membership_count`.
    `past_attempts` are the attempts before the one of which all else tells.
    """

    state: str
    exit_code: int
    seconds: float
    first_failure: Optional[Failure] = None
    consequences: int = 0
    unverified: Tuple[str, ...] = ()
    stalled_s: float = 0.0
    membership_count: int = 0
    nodes: Dict[str, NodeResult] = field(default_factory=dict)
    ranks: Dict[str, RankResult] = field(default_factory=dict)
    past_attempts: Tuple[PastAttempt, ...] = ()

    def ranks_on(self, node: str) -> Tuple[int, ...]:
        """Return the ranks of a node; where torch numbers them, those it had in the end."""
        return tuple(
            sorted(int(rank) for rank, result in self.ranks.items() if result.node == node)
        )


def fold_events(
    plan: Plan,
    timed_events: Iterable[TimedEvent],
    seconds: float,
    past_attempts: Tuple[PastAttempt, ...] = (),
) -> Verdict:
    """Return the verdict; the first failure by corrected time wins, the rest is consequence.

    A run that starts once more ends as its last attempt does; `past_attempts` are those before it.
    """
    history = sorted(timed_events, key=lambda timed: timed.at)
    nodes = {node_plan.node: NodeResult() for node_plan in plan.nodes}
    memberships = _memberships(history) if plan.torch_assigns_ranks else None
    last = memberships.last if memberships else None
    ranks = _rank_results(plan, history, last)
    failures: List[Tuple[float, Failure, int]] = []
    consequences: List[Tuple[float, Failure, int]] = []
    stop_times = _stop_times(history)
    hub = _live_hub(plan, stop_times)
    stop = _user_stop(history)
    departed: Set[str] = set()
    for timed in history:
        name, body = timed.event.node, timed.event.body
        if isinstance(body, PeerDeparted):
            departed.add(body.peer)
        elif isinstance(body, ProgramStarted):  # once more, where a lost node came back
            departed.discard(name)
            nodes[name] = NodeResult()
        elif isinstance(body, ProgramExited):
            nodes[name] = replace(nodes[name], code=body.code, signal=body.signal)
        elif isinstance(body, Ended):
            nodes[name] = replace(
                nodes[name],
                end_verified=body.verified,
                killed=body.killed,
                survivors=body.survivors,
                end_reason=body.reason,
            )
        failure = _failure(timed.event, hub, plan.launcher)
        if name in departed or (plan.restarts_ranks and _superseded(timed, last)):
            continue
        if failure and not _after_stop(timed.event, stop_times):
            failures.append((timed.at, *failure))
        elif failure:
            consequences.append((timed.at, *failure))
    failures = failures or consequences
    expected = (last.world_size if last else 0) or plan.world_size
    all_ranks_known = len(ranks) == expected or not plan.torch_assigns_ranks
    succeeded = all_ranks_known and all(result.code == 0 for result in ranks.values())
    first = None if succeeded and plan.restarts_ranks else _first_failure(failures, stop, succeeded)
    first = _root_cause(first, failures, ranks)
    lost = departed | {f.node for _, f, code in failures if code == _LOST_CODE}
    unverified = tuple(name for name, result in nodes.items() if not result.end_verified)
    stuck = [n for n, r in nodes.items() if r.survivors] + [n for n in unverified if n not in lost]
    state, code = _outcome(first, stop, succeeded)
    if stuck or (stop and unverified):
        state, code = STUCK, 5
    return Verdict(
        state=state,
        exit_code=code,
        seconds=seconds,
        first_failure=first[0] if first else None,
        consequences=_consequences(ranks, first[0] if first else None),
        unverified=unverified,
        stalled_s=_stalled_s(history),
        membership_count=memberships.count if memberships else 0,
        nodes=nodes,
        ranks={str(rank): result for rank, result in sorted(ranks.items())},
        past_attempts=past_attempts,
    )


def _memberships(history: Iterable[TimedEvent]) -> Memberships:
    memberships = Memberships()
    for timed in history:
        if isinstance(timed.event.body, RankStarted):
            memberships.add_start(timed.event.node, timed.event.body, timed.at)
    return memberships


def _rank_results(
    plan: Plan, history: Iterable[TimedEvent], last: Optional[Membership]
) -> Dict[int, RankResult]:
    """Return how every rank ended: those of the plan, or of the last membership."""
    ranks = {
        rank: RankResult(node_plan.node) for node_plan in plan.nodes for rank in node_plan.ranks
    }
    for timed in history:
        name, body = timed.event.node, timed.event.body
        if not isinstance(body, (RankStarted, RankExited)):
            continue
        if last and not last.contains(name, body.rank, body.start):
            continue
        if isinstance(body, RankExited):
            end = (body.code, body.signal, body.max_rss)
            exited = RankResult(name, *end, started=True)
            ranks[body.rank] = replace(exited, traceback=body.traceback, exception=body.exception)
        else:
            previous = ranks.get(body.rank, RankResult(name))
            ranks[body.rank] = replace(previous, started=True)
    return ranks


def _superseded(timed: TimedEvent, last: Optional[Membership]) -> bool:
    """Whether what went wrong did so in a membership that another one followed."""
    body = timed.event.body
    if last is None:
        return False
    if isinstance(body, RankExited):
        return not last.contains(timed.event.node, body.rank, body.start)
    return isinstance(body, (HostLost, PeerLost)) and timed.at < last.started_at


def lost_nodes(plan: Plan, history: Sequence[TimedEvent]) -> Dict[str, str]:
    """Return the nodes that were lost, each with why, as far as somebody saw that."""
    hub = _live_hub(plan, _stop_times(history))
    lost: Dict[str, str] = {}
    for timed in history:
        failure = _failure(timed.event, hub, plan.launcher)
        if failure and failure[1] == _LOST_CODE:
            lost.setdefault(failure[0].node, failure[0].reason)
    return lost


def _live_hub(plan: Plan, stop_times: Mapping[Tuple[str, int], float]) -> str:
    """Return the node of the hub, if it lived to be stopped."""
    hub = plan.nodes[0].node
    return hub if any(name == hub for name, _ in stop_times) else ""


def _stalled_s(history: Iterable[TimedEvent]) -> float:
    """Return what the last word of a watchdog was."""
    stalled_s = 0.0
    for timed in history:
        if isinstance(timed.event.body, Stalled):
            stalled_s = timed.event.body.seconds
        elif isinstance(timed.event.body, ProgressResumed):
            stalled_s = 0.0
    return stalled_s


def _user_stop(history: Iterable[TimedEvent]) -> Optional[Tuple[float, int]]:
    """Return when the user wanted the end, and by which signal; one said elsewhere counts as INT.

    Which of the two was first is no matter of clocks: ours knows the signal.
    """
    requested = [
        (timed.at, timed.event.body.signal)
        for timed in history
        if isinstance(timed.event.body, StopRequested) and timed.event.body.signal
    ]
    reported = [
        (timed.at, int(signal.SIGINT))
        for timed in history
        if isinstance(timed.event.body, Stopping) and timed.event.body.cause is StopCause.USER
    ]
    if not requested and not reported:
        return None
    return min(requested + reported)[0], (requested or reported)[0][1]


def _stop_times(history: Iterable[TimedEvent]) -> Dict[Tuple[str, int], float]:
    """Return when each node heard that the others stop, on its own clock."""
    stop_times: Dict[Tuple[str, int], float] = {}
    for timed in history:
        event, body = timed.event, timed.event.body
        if isinstance(body, Stopping) and body.cause is not StopCause.LOCAL:
            stop_times.setdefault((event.node, event.attempt), event.mono)
    return stop_times


def _after_stop(event: Event, stop_times: Mapping[Tuple[str, int], float]) -> bool:
    """Whether a program or a rank ended when its host was stopping it already.

    One host's clock tells that exactly; between two hosts it may be off by more than the
    milliseconds that a stop takes from one to the other.
    """
    if not isinstance(event.body, (RankExited, ProgramExited)):
        return False
    return event.mono >= stop_times.get((event.node, event.attempt), float("inf"))


_FAILED_CODE, _LOST_CODE = 1, 4


def _failure(event: Event, hub: str, launcher: str) -> Optional[Tuple[Failure, int]]:
    """Return what went wrong by an event; `hub` is that of the run, if it lived to be stopped.

    `launcher` is what starts the ranks.
    """
    body = event.body
    if isinstance(body, RankExited) and not body.succeeded:
        reason = body.error or describe_exit(body.code, body.signal)
        return Failure(event.node, body.rank, reason), _FAILED_CODE
    if isinstance(body, ProgramExited) and (body.error or body.code != 0):
        reason = body.error or f"{launcher} {describe_exit(body.code, body.signal)}"
        return Failure(event.node, None, reason), _FAILED_CODE
    if isinstance(body, PortTaken):
        holder = f" (process {body.pids[0]})" if body.pids else ""
        reason = f"port {body.port}, reserved for the ranks' meeting, was taken{holder}"
        return Failure(event.node, None, reason), _FAILED_CODE
    if (isinstance(body, Stopping) and body.cause is StopCause.LOCAL) or (
        isinstance(body, Ended) and body.state is State.FAILED and body.reason
    ):  # the host's own doing: its supervisor heard of no controller, or died
        return Failure(event.node, None, body.reason), _FAILED_CODE
    if isinstance(body, (HostLost, PeerLost)):
        node, reason = body.peer if isinstance(body, PeerLost) else event.node, body.reason
        if node == hub and event.node != hub:  # it was well, and who says so was cut off
            node, reason = event.node or hub, f"out of touch with {hub}: {reason}"
        return Failure(node, None, reason), _LOST_CODE
    return None


def _first_failure(
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
        return (_self_reported(failures, at, failure) if lost else None) or (failure, code)
    return None


def _root_cause(
    first: Optional[Tuple[Failure, int]],
    failures: List[Tuple[float, Failure, int]],
    ranks: Mapping[int, RankResult],
) -> Optional[Tuple[Failure, int]]:
    """The rank that raised, where the first that ended had only noticed it.

    Python says what was raised and then takes down what it holds; meanwhile those who talk to that
    rank may see its connections close, and end before it does. It ended by our signal, or by itself
    before it was told to: what a rank raises on being told says nothing.
    """
    first_result = ranks.get(first[0].rank) if first and first[0].rank is not None else None
    crashed = first_result is None or first_result.signal not in (None, signal.SIGABRT)
    if first_result is None or crashed or not is_secondary_error(first_result.exception):
        return first
    failed_ranks = {failure.rank for _, failure, _ in failures}
    for rank, result in sorted(ranks.items(), key=lambda pair: not pair[1].signal):
        if not (result.signal or (result.code and rank in failed_ranks)):
            continue
        if result.exception and not is_secondary_error(result.exception):
            reason = f"raised {result.exception.splitlines()[0].partition(':')[0]}"
            return Failure(result.node, rank, reason), _FAILED_CODE
    return first


def _self_reported(
    failures: List[Tuple[float, Failure, int]], lost_at: float, first: Failure
) -> Optional[Tuple[Failure, int]]:
    """What a host said itself at the moment when others lost it: its supervisor died."""
    for at, failure, code in failures:
        is_own = failure.node == first.node and failure.rank is None and code == _FAILED_CODE
        if is_own and abs(at - lost_at) < SAME_EVENT_S:
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
