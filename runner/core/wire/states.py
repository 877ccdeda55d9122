"""States of a run on a host, with their legal transitions, and reasons of ends."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import (
    Dict,
    FrozenSet,
    Optional,
)

START_REFUSED = "could not start"
"""What the end of a host begins with that did not take its order; the reason follows."""

STALL_REASON = "no rank made progress for"
"""The beginning of the reason for which a watchdog stops a run."""

SUCCEEDED = "succeeded"
FAILED = "failed"
STOPPED = "stopped"
LOST = "lost"
STUCK = "stuck"
FAILED_CODE = 1
LOST_CODE = 4
STUCK_CODE = 5

TERMINATED = "its processes got SIGTERM"
"""The reason of a stop that began with TERM to a supervisor."""

ENDED_BY_SCHEDULER = "ended by Slurm"
"""The reason of a stop that the scheduler began."""

LIMIT_REASON = "its job was about to reach its time limit"
"""The reason of a stop before a job is started again."""


class State(enum.Enum):
    """The life of a run on one host."""

    STARTING = "starting"
    """The order is on disk; the program is not running yet."""
    RUNNING = "running"
    """The program runs."""
    STOPPING = "stopping"
    """The processes of the run are being ended."""
    SUCCEEDED = "succeeded"
    """The program ended with 0, and nothing of it is left."""
    FAILED = "failed"
    """The program failed, or could not be started; nothing of it is left."""
    STOPPED = "stopped"
    """The run was asked to stop; nothing of it is left."""
    STUCK = "stuck"
    """Some processes survived SIGKILL until the deadline of the stop."""

    @property
    def is_terminal(self) -> bool:
        """Whether no other state can follow."""
        return not TRANSITIONS[self]


TRANSITIONS: Dict[State, FrozenSet[State]] = {
    State.STARTING: frozenset({State.RUNNING, State.STOPPING, State.FAILED, State.STUCK}),
    State.RUNNING: frozenset({State.STOPPING, State.SUCCEEDED, State.FAILED, State.STUCK}),
    State.STOPPING: frozenset({State.SUCCEEDED, State.FAILED, State.STOPPED, State.STUCK}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset(),
    State.STOPPED: frozenset(),
    State.STUCK: frozenset(),
}


@dataclass(frozen=True)
class Failure:
    """One thing that went wrong; `rank` is None if it was not a rank that failed."""

    node: str
    rank: Optional[int]
    reason: str


def failure_text(failure: Failure) -> str:
    """Return a failure in words: "rank 3 on gpu2 exited with 1", "gpu2: could not start"."""
    # Which rank or host reported it first means nothing.
    if is_stall(failure.reason) or is_unattended(failure.reason) or is_scheduled(failure.reason):
        return failure.reason
    if failure.rank is None:
        return f"{failure.node}: {failure.reason}"
    return f"rank {failure.rank} on {failure.node} {failure.reason}"


def is_stall(reason: str) -> bool:
    """Return whether an attempt ended because no rank made progress.

    Every node shows a standstill: which host or rank noticed it says nothing.
    """
    return reason.startswith(STALL_REASON)


def loss_reason(node: str, reason: str) -> str:
    """Return the reason of a stop because a node was lost."""
    return f"lost {node}: {reason}"


def is_loss(reason: str) -> bool:
    """Return whether that was the reason of a stop."""
    return reason.startswith("lost ")


def unattended_reason(limit_s: float) -> str:
    """Return the reason of a stop because the controller lease expired."""
    return f"no controller was attached for {limit_s:g} s (disconnect_s)"


def is_unattended(reason: str) -> bool:
    """Return whether that was the reason of a stop."""
    return reason.startswith("no controller was attached for ")


def is_scheduled(reason: str) -> bool:
    """Return whether that was the reason of a stop that the scheduler began."""
    return reason.startswith((ENDED_BY_SCHEDULER, LIMIT_REASON))
