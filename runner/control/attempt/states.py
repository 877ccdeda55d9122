"""States of a node and of an attempt as their controller sees them, with their transitions."""

from __future__ import annotations

import enum


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


NODE_TRANSITIONS: dict[NodeState, frozenset[NodeState]] = {
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


ATTEMPT_TRANSITIONS: dict[AttemptState, frozenset[AttemptState]] = {
    AttemptState.STARTING: _LEAVING
    | {AttemptState.RUNNING, AttemptState.STOPPING, AttemptState.DETACHING},
    AttemptState.RUNNING: _LEAVING | {AttemptState.STOPPING, AttemptState.DETACHING},
    AttemptState.STOPPING: _LEAVING | {AttemptState.DETACHING},
    AttemptState.DETACHING: _LEAVING | {AttemptState.STOPPING},
    AttemptState.LEFT: frozenset(),
    AttemptState.HUNG_UP: frozenset(),
    AttemptState.ENDED: frozenset(),
}
