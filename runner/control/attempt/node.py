"""Node of an attempt as the controller sees it: state, ranks, logs, connection."""

from __future__ import annotations

import enum
import math
import random
import time
from dataclasses import dataclass, field, replace

from runner.control.rpc.log_tail import LogTailer
from runner.control.rpc.session import HostSession
from runner.core.spec import Node
from runner.core.wire.plan import NodePlan
from runner.core.wire.timing import ANSWER_TIMEOUT_S

MIN_BACKOFF_S = 0.3
MAX_BACKOFF_S = 15.0
"""The pause before the first attempt to reconnect, and the longest pause."""

STABLE_AFTER_S = 10.0
"""A new connection that breaks within this time counts as one more failed attempt."""


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


@dataclass
class Backoff:
    """A broken connection, and the attempts to open a new one."""

    reason: str
    since: float
    tries: int = 0
    in_progress: bool = False
    next_try_at: float = field(default_factory=time.monotonic)
    delay_s: float = MIN_BACKOFF_S

    @property
    def is_due(self) -> bool:
        return not self.in_progress and time.monotonic() >= self.next_try_at

    def on_failure(self, reason: str) -> None:
        self.reason = reason
        self.next_try_at = time.monotonic() + self.delay_s * random.uniform(0.5, 1.0)  # noqa: S311
        self.delay_s = min(MAX_BACKOFF_S, 2 * self.delay_s)
        self.tries += 1
        self.in_progress = False


class NodeConnection:
    """The connection to one node, across all sessions of an attempt."""

    def __init__(self, session: HostSession | None) -> None:
        self.session = session  # None before the first and after `disconnect`
        self.backoff: Backoff | None = None  # while the connection does not work
        self._last_heard = time.monotonic()
        self._last_delay_s = MIN_BACKOFF_S
        self._reopened_at = -math.inf

    @property
    def live_session(self) -> HostSession | None:
        """The session, if requests can be sent over it."""
        is_live = self.session is not None and not self.session.closed and self.backoff is None
        return self.session if is_live else None

    @property
    def last_heard(self) -> float:
        """When anything was received from the node last, over any session.

        Where it was reached again and does not follow the run, that counts for a limited time.
        """
        if self.session is not None:
            limit = self.backoff.since + ANSWER_TIMEOUT_S if self.backoff else math.inf
            self._last_heard = max(self._last_heard, min(self.session.last_heard, limit))
        return self._last_heard

    @property
    def is_unanswered(self) -> bool:
        """Whether the node was reached again, and has not followed the run in all that time."""
        if self.backoff is None or self.session is None:
            return False
        return time.monotonic() > self.backoff.since + ANSWER_TIMEOUT_S

    def begin_backoff(self, reason: str) -> None:
        """Start to reconnect; a connection that held briefly continues with its longer pauses."""
        self.backoff = Backoff(reason, self.last_heard)
        if time.monotonic() - self._reopened_at < STABLE_AFTER_S:
            self.backoff.delay_s = self._last_delay_s
            self.backoff.on_failure(reason)
            self.backoff.tries = 0

    def end_backoff(self) -> Backoff | None:
        """Take the connection as working again; return the backoff that is over."""
        backoff = self.backoff
        self.backoff = None
        if backoff is not None:
            self._reopened_at = time.monotonic()
            self._last_delay_s = backoff.delay_s
        return backoff

    def close(self) -> None:
        """Close the session; later frames of it are ignored."""
        if self.session is not None:
            self._last_heard = self.last_heard
            self.session.close()
            self.session = None

    def disconnect(self, reason: str) -> None:
        """Close the session, and reconnect unless that is under way."""
        self.close()
        if self.backoff is None:
            self.begin_backoff(reason)


@dataclass
class AttemptNode:
    """One node of an attempt, on purpose all of it; only the monitor of the attempt changes it."""

    node_plan: NodePlan
    node: Node
    tailer: LogTailer
    connection: NodeConnection
    state: NodeState = NodeState.STARTING  # changed by `move_to`
    supervisor_started: bool = False  # it was reached in this attempt
    last_data: float = field(default_factory=time.monotonic)  # when events or logs arrived last
    asked_at: float = field(default_factory=time.monotonic)  # to start, or to follow the run
    started_ranks: set[int] = field(default_factory=set)  # since the last start by torch
    are_forked: bool = True  # its ranks, from a process that has imported torch
    master: str = ""  # where these ranks meet, as torch set it
    was_lost: bool = False  # since its supervisor started last
    is_joined: bool = False  # its supervisor is in touch with the hub
    is_cut_off: bool = False  # its supervisor cannot reach the hub
    is_detached: bool = False  # it goes on without a controller
    disk_wait_s: float = 0.0  # for how long its disk has not answered, once that was shown
    # In elastic attempts:
    program_started_at: float = -math.inf
    lost_at: float = -math.inf  # the last time
    is_joining: bool = False  # it was lost, and is asked for its facts or has its order again
    is_replaying: bool = False  # its events are still of the time before it rejoined
    has_succeeded: bool = False  # its launcher process did
    is_surplus: bool = False  # it was stopped because the run succeeded without it
    said_problem: str = ""  # why it could not join

    @property
    def name(self) -> str:
        return self.node_plan.node

    @property
    def live_session(self) -> HostSession | None:
        return self.connection.live_session

    @property
    def is_reachable(self) -> bool:
        return self.live_session is not None and not self.is_finished

    @property
    def is_lost(self) -> bool:
        return self.state is NodeState.LOST

    @property
    def has_ended(self) -> bool:
        return self.state in (NodeState.ENDED, NodeState.COMPLETE)

    @property
    def is_finished(self) -> bool:
        """Whether nothing more is expected of it."""
        return self.state in (NodeState.COMPLETE, NodeState.UNVERIFIED)

    @property
    def is_present(self) -> bool:
        return self.state in (NodeState.STARTING, NodeState.RUNNING)

    @property
    def is_absent(self) -> bool:
        """Whether it was lost or given up, and has not come back, if only to report its end."""
        return self.was_lost or self.state is NodeState.UNVERIFIED

    @property
    def rejoin_count(self) -> int:
        return self.node_plan.order.rejoin_count

    @property
    def progress(self) -> str:
        running = len(self.started_ranks)
        total = self.node_plan.nproc
        return "running" if running == total else f"{running} of {total} ranks"

    def move_to(self, state: NodeState) -> bool:
        """Change its state if that is legal, for messages arrive late; return whether it did."""
        is_legal = state in NODE_TRANSITIONS[self.state]
        if is_legal:
            self.state = state
            self.was_lost = state is NodeState.LOST or (self.was_lost and self.has_ended)
        return is_legal

    def finish(self) -> None:
        """Expect nothing more of it; without its own report its end stays unverified."""
        self.move_to(NodeState.COMPLETE if self.has_ended else NodeState.UNVERIFIED)

    def on_rank_started(self, rank: int, master: str, *, is_forked: bool) -> None:
        """Count a rank; ranks that met elsewhere belong to an earlier start."""
        if master != self.master:
            self.started_ranks.clear()
        self.master = master
        self.started_ranks.add(rank)
        self.are_forked &= is_forked

    def on_program_started(self, rejoin_count: int, at: float) -> None:
        """Take a start that its supervisor reports: one after its loss has brought it back."""
        self.program_started_at = max(self.program_started_at, at)
        if rejoin_count == self.rejoin_count:
            self.is_replaying = False
        if self.is_lost and at > self.lost_at:
            self.move_to(NodeState.RUNNING)

    def rejoin(self) -> None:
        """Start it again within the attempt, over its new session."""
        order = replace(self.node_plan.order, rejoin_count=self.rejoin_count + 1)
        self.node_plan = replace(self.node_plan, order=order)
        self.supervisor_started = False
        self.is_replaying = True
        self.is_joined = False
        self.is_cut_off = False
        self.is_detached = False
        self.connection.end_backoff()
        self.move_to(NodeState.STARTING)
        self.last_data = time.monotonic()
        self.asked_at = self.last_data
        self.started_ranks.clear()
        self.tailer.reopen()
