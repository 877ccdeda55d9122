"""What a supervisor's run on one host can be, and what may follow."""

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
