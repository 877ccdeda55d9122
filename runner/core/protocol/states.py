"""State machines of a supervisor: the run on its host, and the supervisor's own stop ladder."""

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
    """What is left of the run is being ended."""
    SUCCEEDED = "succeeded"
    """The program ended with 0, and nothing of it is left."""
    FAILED = "failed"
    """The program ended otherwise, or could not be started; nothing of it is left."""
    STOPPED = "stopped"
    """It was told to stop; nothing of it is left."""
    STUCK = "stuck"
    """Processes survived SIGKILL until the ladder's own deadline."""

    @property
    def is_terminal(self) -> bool:
        """Whether nothing can follow."""
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
    ELECTING = "electing"
    """Nothing is left here; the hosts decide whether another attempt follows."""
    ENDED = "ended"
    """The end is on record."""


STOP_TRANSITIONS: Dict[StopPhase, FrozenSet[StopPhase]] = {
    StopPhase.WATCHING: frozenset({StopPhase.DRAINING, StopPhase.STOPPING, StopPhase.KILLING}),
    StopPhase.DRAINING: frozenset({StopPhase.WATCHING, StopPhase.STOPPING, StopPhase.KILLING}),
    StopPhase.STOPPING: frozenset({StopPhase.KILLING}),
    StopPhase.KILLING: frozenset({StopPhase.ELECTING, StopPhase.ENDED}),
    StopPhase.ELECTING: frozenset({StopPhase.ENDED}),
    StopPhase.ENDED: frozenset(),
}
