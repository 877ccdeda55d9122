"""Relaunch policy: which reasons allow another attempt, and on which nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Collection, Optional

from runner.core.model.spec import Spec
from runner.core.outcome.stacks import STALL_REASON


def allows_relaunch(spec: Spec, reason: str) -> bool:
    """Return whether an attempt that stopped for `reason` may be followed by another one."""
    return spec.relaunch_on_stall or not reason.startswith(STALL_REASON)


def next_spec(
    spec: Spec, excluded: Collection[str], suspected: Collection[str] = ()
) -> Optional[Spec]:
    """Return the spec of the next attempt: as many nodes as before, in the order of the YAML.

    Args:
        spec: The spec of the attempt that failed.
        excluded: Nodes that were lost, or cannot be used: they take no part.
        suspected: Nodes whose ranks failed: they take part only if no spare replaces them, or if
            they run the etcd of the run.

    Returns:
        The spec; None if too few nodes are left, or the one that runs the etcd of the run is not.
    """
    serve = spec.rendezvous.serve
    if serve and serve in excluded:
        return None
    available = [node for node in (*spec.nodes, *spec.spares) if node.name not in excluded]
    last_choice = {*suspected} - {serve}
    ranked = sorted(
        available, key=lambda node: node.name in last_choice
    )  # stable: spares before suspects
    chosen = {node.name for node in ranked[: len(spec.nodes)]}
    if len(chosen) < (spec.min_nodes or len(spec.nodes)):
        return None
    return replace(
        spec,
        nodes=tuple(node for node in available if node.name in chosen),
        spares=tuple(node for node in available if node.name not in chosen),
    )
