"""Verdict: how a run ended and why, as a fold over its events."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from runner.core.outcome.attempt_events import AttemptEvents, NodeResult, RankResult
from runner.core.outcome.first_failure import find_failures, first_failure
from runner.core.wire.events import Ended, TimedEvent
from runner.core.wire.plan import Plan
from runner.core.wire.run_info import PastAttempt
from runner.core.wire.states import (
    FAILED,
    FAILED_CODE,
    SIGNAL_EXIT_BASE,
    STOPPED,
    STUCK,
    STUCK_CODE,
    SUCCEEDED,
    Reason,
    ReasonKind,
)
from runner.core.wire.tracebacks import is_secondary_error

STOP_SIGNALS = (None, signal.SIGTERM, signal.SIGKILL)
"""Of ranks that did not end by themselves."""

OWN_MASTER = (
    "have the program use MASTER_ADDR and MASTER_PORT as they are set (os.environ.setdefault, "
    "env://), and the ranks of all nodes; what starts its own workers needs task.entry=plain"
)


@dataclass(frozen=True)
class Verdict:
    state: str  # "succeeded", "failed", "stopped", "lost" or "stuck"
    exit_code: int  # of the launch
    seconds: float  # that the last attempt took
    first_failure: Reason | None = None  # what the others follow from
    consequences: int = 0  # how many ranks ended by themselves because of it
    same_failures: int = 0  # how many other ranks failed by themselves in the same way
    unverified: tuple[str, ...] = ()  # nodes that did not prove that nothing of the run is left
    stalled_s: float = 0.0  # how long no rank had made progress at the end
    membership_count: int = 0  # that torch formed, where it assigns the ranks
    nodes: dict[str, NodeResult] = field(default_factory=dict)
    ranks: dict[str, RankResult] = field(default_factory=dict)  # of the last membership
    past_attempts: tuple[PastAttempt, ...] = ()  # before the last one, which all else describes
    stop_reason: str = ""  # who stopped it, where a user did

    @property
    def has_begun(self) -> bool:
        """Whether there may be files and logs of ranks: no host refused to start, or some ran."""
        failure = self.first_failure
        refused = failure is not None and failure.kind is ReasonKind.START
        ran = self.past_attempts or any(result.started for result in self.ranks.values())
        return bool(ran) or not refused

    @property
    def nodes_that_ran(self) -> frozenset[str]:
        """The nodes on which a rank began, or could not."""
        results = self.ranks.values()
        return frozenset(r.node for r in results if r.started or r.code is not None)

    @property
    def unverified_before(self) -> tuple[str, ...]:
        """The nodes that are unverified since an earlier attempt, and not by the last one."""
        names = (name for past in self.past_attempts for name in past.unverified)
        return tuple(name for name in dict.fromkeys(names) if name not in self.unverified)

    def ranks_on(self, node: str) -> tuple[int, ...]:
        """Return the ranks of a node; where torch assigns them, those it had in the end."""
        ranks = (int(rank) for rank, result in self.ranks.items() if result.node == node)
        return tuple(sorted(ranks))


def fold_events(
    plan: Plan,
    timed_events: Iterable[TimedEvent],
    seconds: float,
    past_attempts: tuple[PastAttempt, ...] = (),
) -> Verdict:
    """Return the verdict; the first failure by corrected time wins, the rest are consequences.

    A run that was relaunched ends as its last attempt does.
    """
    events = AttemptEvents(plan, timed_events)
    nodes = {n: story.result for n, story in events.nodes.items() if story.result is not None}
    ranks = events.ranks()
    last = events.memberships.last
    expected = (last.world_size if last else 0) or plan.world_size
    all_known = len(ranks) == expected or not plan.torch_assigns_ranks
    all_succeeded = all_known and all(result.code == 0 for result in ranks.values())
    succeeded = events.is_decided or all_succeeded
    stop = events.user_stop
    failures = find_failures(events)
    first = first_failure(failures, stop, succeeded=succeeded)
    if events.is_decided or (all_succeeded and plan.restarts_ranks):
        first = None
    if first and first.reason.rank is not None:  # perhaps of no membership
        ranks.setdefault(first.reason.rank, RankResult(first.reason.node, started=True))
    state = SUCCEEDED if succeeded else FAILED
    code = 0 if succeeded else FAILED_CODE
    if stop:
        state = STOPPED
        code = SIGNAL_EXIT_BASE + stop.signal
    elif first:
        state, code = first.reason.outcome
    unverified = tuple(name for name, result in nodes.items() if not result.end_verified)
    gone = {failure.reason.node for failure in failures if failure.is_loss}
    gone.update(name for name, story in events.nodes.items() if story.departed is not None)
    gone.difference_update(timed.event.node for timed, _ in events.of(Ended))  # it was asked
    has_survivors = any(result.survivors for result in nodes.values())
    if has_survivors or (stop and unverified) or not gone.issuperset(unverified):
        state = STUCK
        code = STUCK_CODE
    consequences, same_failures = _others(ranks, first.reason) if first else (0, 0)
    return Verdict(
        state=state,
        exit_code=code,
        seconds=seconds,
        first_failure=first.reason if first else None,
        consequences=consequences,
        same_failures=same_failures,
        unverified=unverified,
        stalled_s=events.stalled_s,
        membership_count=len(events.memberships.all),
        nodes=nodes,
        ranks={str(rank): result for rank, result in sorted(ranks.items())},
        past_attempts=past_attempts,
        stop_reason=stop.reason.text if stop else "",
    )


def completed(verdict: Verdict, asked_again: Verdict) -> Verdict:
    """Return a verdict with the ends that hosts could not prove when it was made, but can now.

    How the run ended, and why, stays as it was; only what was stuck for want of a proof no longer
    is. `asked_again` is the verdict by what the hosts say now; a node that joined late is unknown
    to the others.
    """
    now = {name: asked_again.nodes.get(name, NodeResult()) for name in verdict.unverified}
    proven = {name for name, result in now.items() if result.end_verified}
    nodes = {name: now[name] for name in proven}
    ranks = {r: result for r, result in asked_again.ranks.items() if result.node in proven}
    left = tuple(name for name in verdict.unverified if name not in proven)
    ended = asked_again if verdict.state == STUCK and not left else verdict
    return replace(
        verdict,
        state=ended.state,
        exit_code=ended.exit_code,
        unverified=left,
        nodes={**verdict.nodes, **nodes},
        ranks={**verdict.ranks, **ranks},
    )


def _others(ranks: Mapping[int, RankResult], first: Reason) -> tuple[int, int]:
    """Return how many other ranks failed because the first did, and how many as it did."""
    if first.kind is ReasonKind.UNATTENDED:
        return 0, 0
    others = [result for rank, result in ranks.items() if rank != first.rank]
    failed = [each for each in others if each.code or each.signal not in STOP_SIGNALS]
    cause = ranks[first.rank] if first.rank is not None else RankResult(first.node)
    is_unknown = cause.code is None or (cause.code, cause.exception) == (1, "")
    if is_unknown or is_secondary_error(cause.exception):
        return len(failed), 0

    def is_same(other: RankResult) -> bool:
        # A rank that was stopped while it ended, too, has written what it had raised.
        is_alike = bool(other.exception) or other.code == cause.code
        return is_alike and other.exception == cause.exception

    return sum(not is_same(each) for each in failed), sum(map(is_same, others))
