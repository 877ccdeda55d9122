"""Debugged rank, as planned: by its variable the shim (`host/ranks/shim.py`) starts debugpy."""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Tuple

from runner.core.errors import Problem
from runner.core.model.plan import DebugRank
from runner.core.model.spec import Spec
from runner.core.shell import this_program

DEBUG_VARIABLE = "RUNNER_DEBUG_RANK"
"""RANK:PORT, for the shims; a rank's own environment lacks it."""

GUIDE = "docs/debugging.md"


def debug_env(debug: Optional[DebugRank]) -> Dict[str, str]:
    """Return what tells the shims of a run which rank is debugged."""
    return {DEBUG_VARIABLE: f"{debug.rank}:{debug.port}"} if debug else {}


def no_such_rank(debug: DebugRank, world_size: int) -> Problem:
    """Return the problem of a rank that the run does not have."""
    legal = f"0 to {world_size - 1}" if world_size > 1 else "0 alone"
    return Problem("debug.rank", f"there is no rank {debug.rank}: this run has {legal}")


def debug_note(spec: Spec, debug: DebugRank, ranks: Mapping[str, Tuple[int, ...]]) -> str:
    """Return that a rank waits, and how a debugger attaches to it."""
    is_only = len(spec.nodes) == 1
    nodes = [node for node in spec.nodes if is_only or debug.rank in ranks[node.name]]
    where = f" on {nodes[0].name}" if nodes and not is_only else ""
    if nodes and nodes[0].transport == "local":
        how = f"have your editor attach to 127.0.0.1:{debug.port}"
    else:
        which = "" if nodes else " --node NODE"
        forward = f"`{this_program()} forward --run {spec.run_id}{which} {debug.port}`"
        how = (
            f"{forward} in another terminal, and have your editor attach to 127.0.0.1:{debug.port}"
        )
    waits = f"rank {debug.rank}{where} waits for a debugger: {how} ({GUIDE})"
    return f"{waits}; the hang watchdog is off"
