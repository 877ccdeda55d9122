"""Remote run: a run as its hosts describe it, and its state by what they say."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.core.wire.run_info import TERMINAL_STATES, HostRunStatus, RunInfo
from runner.core.wire.states import State
from runner.core.wire.text import display_folder, format_age, printable

BROKEN = "broken"
"""The state of a run whose supervisors are gone, while its record has no end."""

RESTARTING = "restarting"
"""The state of a run between two attempts."""


@dataclass(frozen=True)
class RemoteRun:
    """A run as its hosts describe it: those that answered and have it."""

    info: RunInfo
    by_host: dict[str, HostRunStatus]  # by the node's name of now

    @property
    def run_id(self) -> str:
        return self.info.run_id

    @property
    def relaunch_pending(self) -> bool:
        """Whether its launch is about to relaunch it."""
        return any(status.relaunch_pending for status in current_hosts(self.by_host).values())

    @property
    def is_active(self) -> bool:
        """Whether processes of it may still run, or follow in another attempt."""
        statuses = current_hosts(self.by_host).values()
        return self.relaunch_pending or any(status.is_active for status in statuses)

    def has_ended(self, nodes: Sequence[str]) -> bool:
        """Return whether none of its nodes that answered is active, and no silent one can be.

        One can if the run is elastic or may be relaunched; and if all that is known is that
        members have succeeded: the hub, the first of the nodes, alone waits for the others.
        """
        statuses = current_hosts(self.by_host)
        if self.is_active or all(node in statuses for node in nodes):
            return not self.is_active
        if self.info.min_nodes or any(each.info.relaunches_left for each in statuses.values()):
            return False
        has_failed = any(each.state in (State.FAILED, State.STOPPED) for each in statuses.values())
        return has_failed or nodes[0] in statuses


def current_hosts(statuses: Mapping[str, HostRunStatus]) -> dict[str, HostRunStatus]:
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


def user_at_host() -> str:
    """Return who launches runs from here, as `launched_by` has it."""
    user = str(os.getuid())
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        user = getpass.getuser()
    return f"{user}@{socket.gethostname()}"


def describe_run(info: RunInfo, folder: str = "") -> str:
    """Return what tells a run from others: its id, task, owner, age, and the folder if given."""
    owner = f", of {info.launched_by}" if info.launched_by else ""
    age_s = max(0.0, time.time() - info.launched_at)
    age = f", launched {format_age(age_s)} ago" if info.launched_at else ""
    place = f"{'' if age else ', launched'} from {display_folder(folder)}" if folder else ""
    return printable(f"run {info.run_id}, task {info.task or 'unknown'}{owner}{age}{place}")
