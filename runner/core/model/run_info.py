"""Run info: the record of a whole run that every host keeps, and what a host reports about it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Dict, Mapping, Optional, Tuple

from runner.core.model.metrics import RankProgress
from runner.core.protocol.events import COUNT, TIME
from runner.core.protocol.paths import ATTEMPT, NODE_NAME, RUN_ID
from runner.core.protocol.states import State
from runner.core.text import display_folder, format_age, printable


@dataclass(frozen=True)
class PastAttempt:
    """One attempt that failed."""

    attempt: int = field(metadata=ATTEMPT)  # the run's n-th start, from 0
    nodes: Tuple[str, ...]  # in rank order
    reason: str
    seconds: float = field(default=0.0, metadata=TIME)
    unverified: Tuple[str, ...] = ()  # nodes that did not prove that nothing of it is left


@dataclass(frozen=True)
class RunInfo:
    """The whole run, as every host has it on record in `run.json`."""

    run_id: str = field(metadata=RUN_ID)
    cluster: str = ""
    task: str = ""
    launched_by: str = ""  # user@machine
    launched_at: float = field(default=0.0, metadata=TIME)  # since 1970, by the launching machine
    nnodes: int = field(default=1, metadata=COUNT)
    world_size: int = field(default=1, metadata=COUNT)  # 0 before its job has begun it
    gpus: Optional[Dict[str, int]] = None  # their number on each node that uses any
    attempt: int = field(default=0, metadata=ATTEMPT)  # the run's n-th start, from 0
    min_nodes: int = field(default=0, metadata=COUNT)  # with which it goes on, 0 for all of them
    past_attempts: Tuple[PastAttempt, ...] = ()
    standby_nodes: Tuple[str, ...] = ()  # spares; their hosts have a record of it, too
    relaunches_left: int = field(default=0, metadata=COUNT)  # after this attempt


@dataclass(frozen=True)
class HostRunStatus:
    """One run as one host reports it."""

    info: RunInfo
    owner: str  # the user it belongs to on that host
    state: Optional[State]  # None if the record cannot be read
    alive: bool  # whether its supervisor or guardian is
    changed_at: float = field(metadata=TIME)  # the last change of state, in seconds since 1970
    relaunch_pending: bool = False  # whether its controller is about to relaunch it
    node: str = field(default="", metadata=NODE_NAME)  # in the run, whatever it is called now
    lost_node: bool = False  # whether it ended there because a node was lost
    here: bool = True  # False on a host that only shares the disk of another one
    unattended_left_s: Optional[float] = field(default=None, metadata=TIME)
    """When it ends for want of a controller, in seconds; None if it may have one."""
    progress: Optional[RankProgress] = None  # of the lowest rank there that says how far it is

    @property
    def is_active(self) -> bool:
        """Whether processes of it may still run there."""
        return self.alive or self.state not in TERMINAL_STATES or self.state is State.STUCK


TERMINAL_STATES = (State.SUCCEEDED, State.FAILED, State.STOPPED, State.STUCK, None)

BROKEN = "broken"
"""The state of a run whose supervisors are gone, while its record has no end."""

RESTARTING = "restarting"
"""The state of a run between two attempts."""


def elastic_summary(info: RunInfo, statuses: Mapping[str, HostRunStatus]) -> str:
    """Return the number of live nodes of a run that may go on with fewer, "" for any other."""
    if not 0 < info.min_nodes < info.nnodes:
        return ""
    live = sum(1 for status in statuses.values() if status.alive)
    return f", {live} of {info.min_nodes}-{info.nnodes} nodes"


def current_hosts(statuses: Mapping[str, HostRunStatus]) -> Dict[str, HostRunStatus]:
    """Return the hosts by which a run is judged: those of its last attempt, or still alive.

    Standby nodes count only if there is no other.
    """
    last_attempt = max((status.info.attempt for status in statuses.values()), default=0)
    hosts = {n: s for n, s in statuses.items() if s.alive or s.info.attempt == last_attempt}
    return {n: s for n, s in hosts.items() if s.node not in s.info.standby_nodes} or hosts


def aggregate_state(statuses: Mapping[str, HostRunStatus]) -> str:
    """Return the state of a whole run, from the hosts that answered."""
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
    stopped = "lost" if any(status.lost_node for status in statuses.values()) else "stopped"
    return stopped if State.STOPPED in states else "succeeded"


def describe_run(info: RunInfo, folder: str = "") -> str:
    """Return what tells a run from others: its id, task, owner, age, and the folder if given."""
    owner = f", of {info.launched_by}" if info.launched_by else ""
    age_s = max(0.0, time.time() - info.launched_at)
    age = f", launched {format_age(age_s)} ago" if info.launched_at else ""
    place = f"{'' if age else ', launched'} from {display_folder(folder)}" if folder else ""
    return printable(f"run {info.run_id}, task {info.task or 'unknown'}{owner}{age}{place}")
