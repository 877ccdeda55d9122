"""States of a run on a host, with their legal transitions, and reasons: why one stops, or ended.

A reason is data: who reads one asks for its kind. Its text is made here alone, and never parsed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Dict, FrozenSet, Optional, Tuple

from runner.core.wire.paths import RANK

SUCCEEDED = "succeeded"
FAILED = "failed"
STOPPED = "stopped"
LOST = "lost"
STUCK = "stuck"
FAILED_CODE = 1
NOT_READY_CODE = 3
LOST_CODE = 4
STUCK_CODE = 5
SIGNAL_EXIT_BASE = 128
INTERRUPTED_CODE = SIGNAL_EXIT_BASE + 2


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


class ReasonKind(enum.Enum):
    """What happened; `detail` in words where the kind does not say it all."""

    RANK = "rank"  # one ended by `code`
    PROGRAM = "program"  # the launcher process did, or it could not be started
    START = "start"  # a host did not take its order
    LOST = "lost"  # a node
    SUPERVISOR = "supervisor"  # it died; what it left was ended
    HOST = "host"  # it cannot go on, as with a full disk
    TERM = "term"  # a supervisor got it, as perhaps every process of the run
    STALL = "stall"  # for `detail`
    UNATTENDED = "unattended"  # for `detail`
    SCHEDULER = "scheduler"  # Slurm ended the job
    TIME_LIMIT = "time limit"  # of the job
    USER = "user"  # asked for it
    DECIDED = "decided"  # the program of the node that decides has succeeded
    OTHER = "other"


OF_NODE = (ReasonKind.PROGRAM, ReasonKind.START, ReasonKind.HOST, ReasonKind.TERM)
"""The kinds in whose text the node is named; any node may be the first to tell the others."""

WORDS: Dict[ReasonKind, str] = {
    ReasonKind.START: "could not start: {}",
    ReasonKind.TERM: "its processes got SIGTERM",
    ReasonKind.STALL: "no rank made progress for {}",
    ReasonKind.UNATTENDED: "no controller was attached for {} (disconnect_s)",
    ReasonKind.SCHEDULER: "ended by Slurm: {}",
    ReasonKind.TIME_LIMIT: "its job was about to reach its time limit",
}

OUTCOMES: Dict[ReasonKind, Tuple[str, int]] = {
    ReasonKind.LOST: (LOST, LOST_CODE),
    ReasonKind.START: (FAILED, NOT_READY_CODE),
    ReasonKind.UNATTENDED: (STOPPED, FAILED_CODE),
    ReasonKind.SCHEDULER: (STOPPED, FAILED_CODE),
    ReasonKind.USER: (STOPPED, INTERRUPTED_CODE),
    ReasonKind.TIME_LIMIT: (STOPPED, INTERRUPTED_CODE),
    ReasonKind.DECIDED: (SUCCEEDED, 0),
}


@dataclass(frozen=True)
class Reason:
    """Why a run stops, or ended as it did."""

    kind: ReasonKind
    node: str = ""  # where it happened; "" for no node
    rank: Optional[int] = field(default=None, metadata=RANK)
    code: Optional[int] = None  # of the exit; minus the signal
    detail: str = ""

    @property
    def words(self) -> str:
        """What happened, without where."""
        return WORDS.get(self.kind, "{}").format(self.detail)

    @property
    def text(self) -> str:
        """It in words: "rank 3 on gpu2 exited with 1", "gpu2: could not start: …"."""
        if self.kind is ReasonKind.RANK:
            return f"rank {self.rank} on {self.node} {self.words}"
        if self.kind in (ReasonKind.LOST, ReasonKind.SUPERVISOR):
            return f"lost {self.node}: {self.words}"
        if self.kind is ReasonKind.DECIDED:
            return f"{self.node}, which decides, has succeeded"
        return f"{self.node}: {self.words}" if self.kind in OF_NODE else self.words

    @property
    def is_by_user(self) -> bool:
        return self.kind in (ReasonKind.USER, ReasonKind.TIME_LIMIT)

    @property
    def is_final(self) -> bool:
        """Whether no attempt follows, and what ends by it has not failed."""
        return self.is_by_user or self.kind is ReasonKind.DECIDED

    def is_own(self, node: str) -> bool:
        """Return whether it arose on that node: a stop of it for any other only follows."""
        return self.node == node and not self.is_final and self.kind is not ReasonKind.LOST

    def as_told_to(self, node: str) -> Reason:
        """Return it for that node: whether it has failed itself is not for others to say."""
        return Reason(ReasonKind.OTHER, detail=self.text) if self.is_own(node) else self

    @property
    def outcome(self) -> Tuple[str, int]:
        """State and exit code of a run that ends by it."""
        return OUTCOMES.get(self.kind, (FAILED, FAILED_CODE))
