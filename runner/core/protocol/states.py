"""State tables: the states of runs, attempts, nodes and supervisors, and what may follow each."""

from __future__ import annotations

import enum
from typing import Dict, FrozenSet


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


class StopPhase(enum.Enum):
    """The stop ladder of a supervisor, for one attempt."""

    WATCHING = "watching"
    """Nothing is being ended: the program has not started, runs, or has ended by itself."""
    DRAINING = "draining"
    """The program ended by itself; what it left behind got TERM, and the grace runs."""
    STOPPING = "stopping"
    """There is a reason to stop: the program got TERM, and the grace runs."""
    KILLING = "killing"
    """Everything has ended, or the grace is over: the rest gets KILL, and the end is proven."""
    PENDING = "pending"
    """Nothing is left here; whether another attempt follows is about to be known."""
    ENDED = "ended"
    """The end is on record."""


STOP_TRANSITIONS: Dict[StopPhase, FrozenSet[StopPhase]] = {
    StopPhase.WATCHING: frozenset({StopPhase.DRAINING, StopPhase.STOPPING, StopPhase.KILLING}),
    StopPhase.DRAINING: frozenset({StopPhase.WATCHING, StopPhase.STOPPING, StopPhase.KILLING}),
    StopPhase.STOPPING: frozenset({StopPhase.KILLING}),
    StopPhase.KILLING: frozenset({StopPhase.PENDING, StopPhase.ENDED}),
    StopPhase.PENDING: frozenset({StopPhase.ENDED}),
    StopPhase.ENDED: frozenset(),
}


class NodeState(enum.Enum):
    """The life of a node in one attempt, as its controller sees it."""

    STARTING = "starting"
    """Its order is under way; its supervisor has not answered yet."""
    RUNNING = "running"
    """Its supervisor answers, or did so when it was last reached."""
    LOST = "lost"
    """It was declared lost; it may still report its end, or rejoin."""
    ENDED = "ended"
    """It reported its end; the rest of its logs is being read."""
    COMPLETE = "complete"
    """It reported its end, and no more of its logs will be read."""
    UNVERIFIED = "unverified"
    """The controller stopped waiting for it; its end is not verified."""

    @property
    def is_finished(self) -> bool:
        """Whether the controller expects nothing more of it."""
        return self in (NodeState.COMPLETE, NodeState.UNVERIFIED)

    @property
    def has_ended(self) -> bool:
        """Whether it reported its end."""
        return self in (NodeState.ENDED, NodeState.COMPLETE)


NODE_TRANSITIONS: Dict[NodeState, FrozenSet[NodeState]] = {
    NodeState.STARTING: frozenset(NodeState) - {NodeState.STARTING},
    NodeState.RUNNING: frozenset(
        {NodeState.STARTING, NodeState.LOST, NodeState.ENDED, NodeState.UNVERIFIED}
    ),
    NodeState.LOST: frozenset(NodeState) - {NodeState.LOST},
    NodeState.ENDED: frozenset({NodeState.STARTING, NodeState.LOST, NodeState.COMPLETE}),
    NodeState.COMPLETE: frozenset({NodeState.STARTING}),
    NodeState.UNVERIFIED: frozenset({NodeState.STARTING, NodeState.COMPLETE}),
}
"""STARTING follows a later state where an elastic run takes the node in again."""


class AttemptState(enum.Enum):
    """The life of an attempt, as its controller sees it."""

    STARTING = "starting"
    """Ranks are still to start."""
    RUNNING = "running"
    """Every rank started."""
    STOPPING = "stopping"
    """Every host is asked to stop."""
    DETACHING = "detaching"
    """The hosts are told that no controller is needed any more."""
    LEFT = "left"
    """The user left; the attempt goes on."""
    HUNG_UP = "hung up"
    """The user's terminal was closed; the attempt goes on."""
    ENDED = "ended"
    """Every node is finished."""

    @property
    def is_left(self) -> bool:
        """Whether the controller left an attempt that goes on."""
        return self in (AttemptState.LEFT, AttemptState.HUNG_UP)


_LEAVING = frozenset({AttemptState.LEFT, AttemptState.HUNG_UP, AttemptState.ENDED})
ATTEMPT_TRANSITIONS: Dict[AttemptState, FrozenSet[AttemptState]] = {
    AttemptState.STARTING: _LEAVING
    | {AttemptState.RUNNING, AttemptState.STOPPING, AttemptState.DETACHING},
    AttemptState.RUNNING: _LEAVING | {AttemptState.STOPPING, AttemptState.DETACHING},
    AttemptState.STOPPING: _LEAVING | {AttemptState.DETACHING},
    AttemptState.DETACHING: _LEAVING | {AttemptState.STOPPING},
    AttemptState.LEFT: frozenset(),
    AttemptState.HUNG_UP: frozenset(),
    AttemptState.ENDED: frozenset(),
}
