"""Results: what checks found, how ranks ended, what a command, download or look at hosts gave."""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runner.core.errors import Problem, Shared
from runner.core.wire.facts import (
    ProbeResult,
    Target,
)
from runner.core.wire.run_info import TERMINAL_STATES, HostRunStatus, RunInfo
from runner.core.wire.states import State
from runner.core.wire.text import display_folder, format_age, printable

BROKEN = "broken"
"""The state of a run whose supervisors are gone, while its record has no end."""

RESTARTING = "restarting"
"""The state of a run between two attempts."""


@dataclass
class CommandResult:
    """The outcome of a command on one host."""

    node: str
    exit_code: int | None = None  # minus the signal that ended it; None while it is not known
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    problem: str = ""  # why it did not end by itself
    truncated: bool = False  # whether it printed more than is kept
    unverified: bool = False  # whether processes of it may be left
    lost: bool = False  # whether its host was, before it answered

    @property
    def is_done(self) -> bool:
        return self.exit_code is not None or bool(self.problem)


@dataclass
class PullResult:
    """The outcome of a download from one node."""

    new_count: int = 0  # files that are new here, or have grown
    folders: set[str] = field(default_factory=set)  # where they are, below the run's folder
    existing_count: int = 0
    output_count: int = 0  # files there that the task's `outputs` name
    fetched_bytes: int = 0
    omitted_count: int = 0  # files beyond the limit of one pull
    notes: list[str] = field(default_factory=list)  # what was skipped on the host, and why
    problems: list[Problem] = field(default_factory=list)  # the first of the failed files
    failed_count: int = 0
    is_finished: bool = False  # whether all files of the host were visited

    @property
    def is_complete(self) -> bool:
        """Whether every file of this node is here."""
        return self.is_finished and not self.failed_count and not self.omitted_count


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


@dataclass(frozen=True)
class Setting:
    """One place that sets a key of the configuration."""

    where: str  # "FILE:LINE", "command line: WORD", or "default"
    value: str  # as YAML


@dataclass(frozen=True)
class Origin:
    """A value of the configuration, and the places that set it."""

    key: str
    value: str  # as YAML, with interpolations resolved and secrets as ***
    written: str  # as written; "" where that is the same
    settings: tuple[Setting, ...]  # the first one won
    problem: str = ""  # why it cannot be resolved
    meaning: str = ""  # of the key, and its legal values; "" for a key of the user's own


class Level(enum.Enum):
    """How bad a finding is."""

    ERROR = "error"  # a launch refuses, or would hang
    WARNING = "warning"  # a launch may succeed
    OK = "fine"


@dataclass(frozen=True)
class Finding:
    """One observation about a node, or about the whole cluster."""

    level: Level
    node: str  # "" for the whole cluster
    message: str  # what was found and, if not obvious, why it matters
    hint: str = ""  # the next command to type, or the key to set; "" for what is fine
    shared: Shared | None = None  # see `Problem`

    @property
    def as_problem(self) -> Problem:
        return Problem(self.node, self.message, self.hint, self.shared)

    @staticmethod
    def from_problem(problem: Problem) -> Finding:
        subject = problem.subject
        return Finding(Level.ERROR, subject, problem.message, problem.hint, problem.shared)


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    run_id: str
    changes: tuple[str, ...]  # the overrides that not all runs have
    exit_code: int | None = None  # None if it was not started
    seconds: float = 0.0


@dataclass(frozen=True)
class NetworkProbe:
    """The results of all hosts."""

    endpoints: dict[str, Endpoint]  # by node
    targets: tuple[Target, ...] = ()  # ports of all nodes; a host skips its own
    by_node: dict[str, tuple[ProbeResult, ...]] = field(default_factory=dict)
    missing_reasons: dict[str, str] = field(default_factory=dict)  # of hosts that took no part


@dataclass(frozen=True)
class Endpoint:
    """Where a node is reached by its peers; `subnet` is that of the address. "" is unknown."""

    interface: str = ""
    address: str = ""
    subnet: str = ""


def elastic_summary(info: RunInfo, statuses: Mapping[str, HostRunStatus]) -> str:
    """Return the number of live nodes of a run that may go on with fewer, "" for any other."""
    if not 0 < info.min_nodes < info.nnodes:
        return ""
    live = sum(1 for status in statuses.values() if status.alive)
    return f", {live} of {info.min_nodes}-{info.nnodes} nodes"


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


def describe_run(info: RunInfo, folder: str = "") -> str:
    """Return what tells a run from others: its id, task, owner, age, and the folder if given."""
    owner = f", of {info.launched_by}" if info.launched_by else ""
    age_s = max(0.0, time.time() - info.launched_at)
    age = f", launched {format_age(age_s)} ago" if info.launched_at else ""
    place = f"{'' if age else ', launched'} from {display_folder(folder)}" if folder else ""
    return printable(f"run {info.run_id}, task {info.task or 'unknown'}{owner}{age}{place}")
