"""Connections of a pool that is kept for hours: which hosts are missing, and when to try again."""

from __future__ import annotations

from collections.abc import Iterable

from runner.core.errors import RunnerError
from runner.core.text import printable
from runner.workflows.host_pool import HostPool

DOUBT_S = 1.5
"""A host is pinged every second; one that was silent for longer may be gone."""


def missing_nodes(pool: HostPool, nodes: Iterable[str]) -> list[str]:
    """Return the nodes without a connection, after closing those of silent hosts."""
    for session in list(pool.sessions.values()):
        if session.idle_s > pool.spec.lost_s:
            session.close(is_silent=True)
    return [node for node in nodes if node not in pool.sessions or pool.sessions[node].closed]


def are_certain(pool: HostPool) -> bool:
    """Return whether each open connection works: facts are asked over them, too, and waited for."""
    open_sessions = (each for each in pool.sessions.values() if not each.closed)
    return all(session.idle_s < DOUBT_S for session in open_sessions)


def reason_text(error: RunnerError) -> str:
    """Return why hosts are out of reach, in one line."""
    problem = error.problems[0]
    where = f"{problem.subject}: " if problem.subject else ""
    return printable(f"{where}{problem.message}")
