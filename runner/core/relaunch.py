"""The next attempt of a run that failed: on which nodes, and after which pause."""

from __future__ import annotations

from dataclasses import replace
from typing import Collection, Optional

from runner.core.spec import Spec

LONGEST_S = 300.0
"""No pause is longer."""


def next_spec(spec: Spec, gone: Collection[str], suspect: Collection[str] = ()) -> Optional[Spec]:
    """Return what the next attempt is asked to be, None where too few nodes are left for it.

    As many nodes as before, in the order of the YAML as far as that goes.

    Args:
        spec: What this attempt was asked to be.
        gone: Nodes that were lost, or cannot be used: they take no part any more.
        suspect: Nodes whose ranks failed: they do where there is no spare for them.
    """
    there = [node for node in (*spec.nodes, *spec.spares) if node.name not in gone]
    ranked = sorted(there, key=lambda node: node.name in suspect)  # stable: spares before suspects
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
