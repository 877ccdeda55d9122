"""A run as its hosts' files tell of it, to whoever asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Tuple

from runner.core.model.past import Past
from runner.core.protocol.states import State


@dataclass(frozen=True)
class RunInfo:
    """What every host has on record of the whole run, in `run.json`.

    Attributes:
        run_id: Its name.
        cluster: The cluster's name.
        task: The task's name.
        by: Who launched it, as user@machine.
        began: When, in seconds since 1970 on the launching machine.
        nodes: How many nodes it has.
        world_size: How many ranks.
        gpus: How many GPUs it uses on each node that uses any.
        attempt: Which start of it this is, from 0.
        least: With so many nodes it goes on, 0 for all of them.
        past: The attempts before it.
        standby: Spare nodes that stand by; their hosts have a record of it, too.
        relaunches: How often it may start once more after this attempt.
    """

    run_id: str
    cluster: str = ""
    task: str = ""
    by: str = ""
    began: float = 0.0
    nodes: int = 1
    world_size: int = 1
    gpus: Optional[Dict[str, int]] = None
    attempt: int = 0
    least: int = 0
    past: Tuple[Past, ...] = ()
    standby: Tuple[str, ...] = ()
    relaunches: int = 0

    @property
    def nodes_before(self) -> Tuple[str, ...]:
        """All nodes that took part in the attempts before it."""
        return tuple(dict.fromkeys(name for each in self.past for name in each.nodes))


@dataclass(frozen=True)
class RunSeen:
    """One run as one host sees it.

    Attributes:
        info: What is on record of the whole.
        owner: The user it belongs to on that host.
        state: How far it is there; None when the record cannot be read.
        alive: Whether its supervisor or guardian lives.
        changed: When its state changed last, in seconds since 1970 on that host.
        waits: Whether its controller is about to start it once more.
    """

    info: RunInfo
    owner: str
    state: Optional[State]
    alive: bool
    changed: float
    waits: bool = False

    @property
    def on(self) -> bool:
        """Whether something of it may go on there."""
        return self.alive or self.state not in ENDS or self.state is State.STUCK


ENDS = (State.SUCCEEDED, State.FAILED, State.STOPPED, State.STUCK, None)

BROKEN = "broken"
"""The state of a run whose supervisors are gone, while its record has no end."""


RESTARTING = "restarting"
"""The state of a run between two attempts."""


def elastic(info: RunInfo, seen: Mapping[str, RunSeen]) -> str:
    """Return with how many nodes a run goes on that may do with fewer, "" for any other."""
    if not 0 < info.least < info.nodes:
        return ""
    live = sum(1 for each in seen.values() if each.alive)
    return f", {live} of {info.least}-{info.nodes} nodes"


def present(seen: Mapping[str, RunSeen]) -> Dict[str, RunSeen]:
    """Return those of a run's hosts that tell how it is: of its last attempt, or still at it.

    Who only stands by does so where no other is left.
    """
    last = max((each.info.attempt for each in seen.values()), default=0)
    there = {n: each for n, each in seen.items() if each.alive or each.info.attempt == last}
    return {n: each for n, each in there.items() if n not in each.info.standby} or there


def overall(seen: Mapping[str, RunSeen]) -> str:
    """Return how far a whole run is, from what those of its hosts say that answered."""
    seen = present(seen)
    live = [each.state for each in seen.values() if each.alive]
    for state in (State.STOPPING, State.STARTING):
        if state in live:
            return str(state.value)
    if live:
        return "running"
    if any(each.waits for each in seen.values()):
        return RESTARTING
    states = {each.state for each in seen.values()}
    for state in (State.STUCK, State.FAILED):
        if state in states:
            return str(state.value)
    if any(state not in ENDS for state in states) or None in states:
        return BROKEN
    return "stopped" if State.STOPPED in states else "succeeded"
