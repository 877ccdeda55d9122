"""The next attempt of a run that failed: on which nodes, and after which pause."""

from __future__ import annotations

from dataclasses import replace
from typing import Collection, Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Tuple

from runner.core.model.past import Past
from runner.core.model.spec import Spec
from runner.core.outcome.exits import SIGNALLED
from runner.core.outcome.stacks import STALLED
from runner.core.outcome.verdict import LOST, Observed, Verdict, fold, losses
from runner.core.planning.build_plan import Plan
from runner.core.protocol.events import Ended, HostSilent, PeerLeft, PortTaken, ProgramStarted
from runner.core.protocol.states import State

LONGEST_S = 300.0
"""No pause is longer."""


class Casualties(NamedTuple):
    """What an attempt cost.

    Attributes:
        gone: Why each node takes no part any more: it could not begin, or did not show that
            nothing is left there.
        suspect: Nodes that were lost but did show it, and the one on which it failed first.
    """

    gone: Dict[str, str]
    suspect: FrozenSet[str] = frozenset()


def casualties(plan: Plan, observed: Iterable[Observed]) -> Casualties:
    """Return who takes no part in the next attempt, or only where there is nobody else.

    Args:
        plan: That of the attempt which failed.
        observed: What is known to have happened in it.
    """
    history = sorted(observed, key=lambda seen: seen.at)
    lost = losses(plan, history)
    gone: Dict[str, str] = {}
    left: Dict[str, str] = {}  # a run that went on without them
    clean = set()
    began = {seen.event.node for seen in history if isinstance(seen.event.body, ProgramStarted)}
    for seen in history:
        name, body = seen.event.node, seen.event.body
        if isinstance(body, PeerLeft):
            left[body.peer] = body.reason
            clean.discard(body.peer)
        elif isinstance(body, ProgramStarted):  # perhaps once more
            for each in (gone, left):
                each.pop(name, None)
        elif isinstance(body, HostSilent):
            gone[name] = body.reason
        elif isinstance(body, Ended) and body.state is State.FAILED and name not in began:
            gone[name] = body.reason or "its program could not be started"
        elif isinstance(body, Ended) and (body.survivors or not body.proven):
            gone[name] = "something of the run may be left there"
        elif isinstance(body, Ended):
            clean.add(name)
            left.pop(name, None)
    gone = {**left, **gone, **{name: why for name, why in lost.items() if name not in clean}}
    suspect = {*lost, *_first_to_fail(plan, history)} - gone.keys()
    return Casualties(gone, frozenset(suspect))


def _first_to_fail(plan: Plan, history: List[Observed]) -> Tuple[str, ...]:
    """Return the node on which something failed first, if it is to blame for that."""
    first = fold(plan, history, 0.0).first_failure
    taken = any(isinstance(seen.event.body, PortTaken) for seen in history)
    if first is None or taken or first.what.startswith(STALLED):  # who saw that says nothing
        return ()
    return (first.node,)


def curable(spec: Spec, verdict: Verdict) -> bool:
    """Whether another attempt may follow one that ended so, as far as that attempt tells.

    Not where the user wanted the end, and not where something of it cannot be killed.
    """
    first = verdict.first_failure
    if first is None or verdict.exit_code >= SIGNALLED:
        return False
    if any(result.survivors for result in verdict.nodes.values()):
        return False
    return spec.stall_restarts or not first.what.startswith(STALLED)


def reason(verdict: Verdict) -> str:
    """Return why an attempt ended, in a few words."""
    first = verdict.first_failure
    if first is None:
        return verdict.state
    if first.what.startswith(STALLED):
        return first.what
    if verdict.state == LOST:
        return f"lost {first.node} ({first.what})"
    who = f"{first.node}:" if first.rank is None else f"rank {first.rank} on {first.node}"
    return f"{who} {first.what}"


def past(plan: Plan, verdict: Verdict) -> Past:
    """Return what stays on record of an attempt that is followed by another."""
    nodes = tuple(share.node for share in plan.nodes)
    return Past(plan.attempt, nodes, reason(verdict), verdict.seconds, verdict.unproven)


def next_spec(spec: Spec, gone: Collection[str], suspect: Collection[str] = ()) -> Optional[Spec]:
    """Return what the next attempt is asked to be; None where there can be none.

    That is where too few nodes are left for it, or the one that is to run its etcd is not.

    As many nodes as before, in the order of the YAML as far as that goes.

    Args:
        spec: What this attempt was asked to be.
        gone: Nodes that were lost, or cannot be used: they take no part any more.
        suspect: Nodes whose ranks failed: they do where there is no spare for them, or where they
            run the etcd of the run.
    """
    serve = spec.rendezvous.serve
    if serve and serve in gone:
        return None
    there = [node for node in (*spec.nodes, *spec.spares) if node.name not in gone]
    others = {*suspect} - {serve}
    ranked = sorted(there, key=lambda node: node.name in others)  # stable: spares before suspects
    chosen = {node.name for node in ranked[: len(spec.nodes)]}
    if len(chosen) < (spec.least or len(spec.nodes)):
        return None
    return replace(
        spec,
        nodes=tuple(node for node in there if node.name in chosen),
        spares=tuple(node for node in there if node.name not in chosen),
    )


def pause_s(spec: Spec, attempt: int) -> float:
    """Return how long to wait before an attempt, the first relaunch being 1."""
    return min(LONGEST_S, spec.relaunch.backoff_s * 2.0 ** (attempt - 1))
