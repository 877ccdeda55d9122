"""Losses of an attempt: what its events say about the next one, where a launch plans it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from runner.core.errors import SIGNAL_EXIT_BASE
from runner.core.outcome.attempt_events import AttemptEvents
from runner.core.outcome.verdict import Verdict
from runner.core.spec import Spec
from runner.core.wire.events import TimedEvent
from runner.core.wire.plan import Plan
from runner.core.wire.run_info import PastAttempt
from runner.core.wire.states import Reason, ReasonKind


class Losses(NamedTuple):
    excluded: dict[str, str]
    """Why a node takes no part any more: it could not start, or did not prove that nothing of the
    attempt is left there."""
    suspected: frozenset[str] = frozenset()
    """Nodes that were lost but proved it, and the one that failed first."""


def classify_losses(
    plan: Plan, timed_events: Iterable[TimedEvent], first_failure: Reason | None
) -> Losses:
    """Return the nodes that take no part in the next attempt, or only if there is no other."""
    events = AttemptEvents(plan, timed_events)
    excluded: dict[str, str] = {}
    for name, story in events.nodes.items():
        if story.departed is not None and not story.is_proven:
            excluded[name] = story.departed
        if story.problem:
            excluded[name] = story.problem
        if name in events.lost and not story.is_proven:
            excluded[name] = events.lost[name]
    suspected = {*events.lost}
    is_stall = first_failure is not None and first_failure.kind is ReasonKind.STALL
    if first_failure and not is_stall:
        suspected.add(first_failure.node)
    return Losses(excluded, frozenset(suspected - excluded.keys()))


def next_spec(spec: Spec, excluded: Collection[str], suspected: Collection[str]) -> Spec | None:
    """Return the spec of the next attempt: as many nodes as before, in the order of the YAML.

    Nodes that are `excluded` (lost, or not usable) take no part. Those that are `suspected` (their
    ranks failed) take part if no spare replaces them. None if too few nodes are left, or not the
    one that decides.
    """
    available = [node for node in (*spec.nodes, *spec.spares) if node.name not in excluded]
    # The sort is stable: spares come before suspects.
    replaceable = {*suspected} - {spec.task.decides}
    ranked = sorted(available, key=lambda node: node.name in replaceable)
    chosen = {node.name for node in ranked[: len(spec.nodes)]}
    if len(chosen) < (spec.min_nodes or len(spec.nodes)) or spec.task.decides in {*excluded}:
        return None
    return replace(
        spec,
        nodes=tuple(node for node in available if node.name in chosen),
        spares=tuple(node for node in available if node.name not in chosen),
    )


def may_relaunch(spec: Spec, verdict: Verdict) -> bool:
    """Return whether the end of an attempt allows another one.

    It does not if a user or a scheduler wanted the end, or if processes survived SIGKILL.
    """
    first_failure = verdict.first_failure
    if first_failure is None or verdict.exit_code >= SIGNAL_EXIT_BASE:
        return False
    if any(result.survivors for result in verdict.nodes.values()):
        return False
    if first_failure.kind in (ReasonKind.SCHEDULER, ReasonKind.TIME_LIMIT):
        return False
    return spec.watch.relaunches or first_failure.kind is not ReasonKind.STALL


def past_attempt(plan: Plan, verdict: Verdict) -> PastAttempt:
    return PastAttempt(
        attempt=plan.attempt,
        nodes=tuple(node_plan.node for node_plan in plan.nodes),
        reason=verdict.first_failure or Reason(ReasonKind.OTHER, detail=verdict.state),
        seconds=verdict.seconds,
        unverified=verdict.unverified,
    )
