"""A run as its hosts' files tell of it, to whoever asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Tuple

from runner.core.model.past import PastAttempt
from runner.core.protocol.states import State


@dataclass(frozen=True)
class RunInfo:
    """What every host has on record of the whole run, in `run.json`.

    Attributes:
        run_id: Its name.
        cluster: The cluster's name.
        task: The task's name.
        launched_by: Who launched it, as user@machine.
        launched_at: When, in seconds since 1970 on the launching machine.
        nnodes: How many nodes it has.
        world_size: How many ranks.
        gpus: How many GPUs it uses on each node that uses any.
        attempt: Which start of it this is, from 0.
        min_nodes: With so many nodes it goes on, 0 for all of them.
        past_attempts: The attempts before it.
        standby_nodes: Spare nodes that stand by; their hosts have a record of it, too.
        relaunches_left: How often it may start once more after this attempt.
    """

    run_id: str
    cluster: str = ""
    task: str = ""
    launched_by: str = ""
    launched_at: float = 0.0
    nnodes: int = 1
    world_size: int = 1
    gpus: Optional[Dict[str, int]] = None
    attempt: int = 0
    min_nodes: int = 0
    past_attempts: Tuple[PastAttempt, ...] = ()
    standby_nodes: Tuple[str, ...] = ()
    relaunches_left: int = 0

    @property
    def past_nodes(self) -> Tuple[str, ...]:
        """All nodes that took part in the attempts before it."""
        return tuple(
            dict.fromkeys(name for attempt in self.past_attempts for name in attempt.nodes)
        )


@dataclass(frozen=True)
class HostRunStatus:
    """One run as one host sees it.

    Attributes:
        info: What is on record of the whole.
        owner: The user it belongs to on that host.
        state: How far it is there; None when the record cannot be read.
        alive: Whether its supervisor or guardian lives.
        changed_at: When its state changed last, in seconds since 1970 on that host.
        relaunch_pending: Whether its controller is about to start it once more.
    """

    info: RunInfo
    owner: str
    state: Optional[State]
    alive: bool
    changed_at: float
    relaunch_pending: bool = False

    @property
    def is_active(self) -> bool:
        """Whether something of it may go on there."""
        return self.alive or self.state not in TERMINAL_STATES or self.state is State.STUCK


TERMINAL_STATES = (State.SUCCEEDED, State.FAILED, State.STOPPED, State.STUCK, None)

BROKEN = "broken"
"""The state of a run whose supervisors are gone, while its record has no end."""


RESTARTING = "restarting"
"""The state of a run between two attempts."""


def elastic_summary(info: RunInfo, statuses: Mapping[str, HostRunStatus]) -> str:
    """Return with how many nodes a run goes on that may do with fewer, "" for any other."""
    if not 0 < info.min_nodes < info.nnodes:
        return ""
    live = sum(1 for status in statuses.values() if status.alive)
    return f", {live} of {info.min_nodes}-{info.nnodes} nodes"


def current_hosts(statuses: Mapping[str, HostRunStatus]) -> Dict[str, HostRunStatus]:
    """Return those of a run's hosts that tell how it is: of its last attempt, or still at it.

    Who only stands by does so where no other is left.
    """
    last_attempt = max((status.info.attempt for status in statuses.values()), default=0)
    current = {
        n: status
        for n, status in statuses.items()
        if status.alive or status.info.attempt == last_attempt
    }
    return {
        n: status for n, status in current.items() if n not in status.info.standby_nodes
    } or current


def aggregate_state(statuses: Mapping[str, HostRunStatus]) -> str:
    """Return how far a whole run is, from what those of its hosts say that answered."""
    statuses = current_hosts(statuses)
    live = [status.state for status in statuses.values() if status.alive]
    for state in (State.STOPPING, State.STARTING):
        if state in live:
            return str(state.value)
    if live:
        return "running"
    if any(status.relaunch_pending for status in statuses.values()):
        return RESTARTING
    states = {status.state for status in statuses.values()}
    for state in (State.STUCK, State.FAILED):
        if state in states:
            return str(state.value)
    if any(state not in TERMINAL_STATES for state in states) or None in states:
        return BROKEN
    return "stopped" if State.STOPPED in states else "succeeded"
