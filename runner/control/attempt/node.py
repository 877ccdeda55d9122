"""What is known of one node of an attempt, and how it is reached again when its wire breaks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from runner.control.attempt.log_tail import LogTailer
from runner.control.attempt.reconnect import Backoff
from runner.control.rpc.session import HostSession
from runner.core.model.spec import Node
from runner.core.planning.build_plan import NodePlan

STABLE_AFTER_S = 10.0
"""A new wire that breaks within this time is one more failed try."""


@dataclass
class NodeState:
    """One node: its wire, and how far it is.

    Attributes:
        node_plan: Its share of the plan.
        node: How it is reached.
        tailer: Its files.
        session: Its wire; None before the first.
        supervisor_started: Whether its supervisor runs, or ran.
        hub_joined: Whether its supervisor keeps in touch with the others.
        hub_unreachable: Whether it said that it cannot.
        detached: Whether it goes on without any controller.
        ended: Whether it said that nothing is left.
        lost: Whether it counts as lost.
        departed_at: When the run went on without it.
        program_started_at: When its program was started last.
        order_count: How often it was sent an order in this attempt.
        joined_late: Whether it was, when the run was on already.
        replaying: Whether what it tells is still of the time before it came back.
        succeeded: Whether its program succeeded.
        surplus: Whether it was told to end since the run succeeded without it.
        finished: Whether nothing more is expected of it.
        last_data: When it sent something of the run last.
        last_heard: When it was heard last, over whatever wire.
        started_ranks: The ranks that run, or ran; where torch starts them anew, those of the last
            time.
        master: Where these meet, by what torch told them.
        backoff: Set while it has no wire.
        last_backoff: The last time that it had none; it ended at `reconnected_at`.
    """

    node_plan: NodePlan
    node: Node
    tailer: LogTailer
    session: HostSession | None
    supervisor_started: bool = False
    hub_joined: bool = False
    hub_unreachable: bool = False
    detached: bool = False
    ended: bool = False
    lost: bool = False
    finished: bool = False
    departed_at: float = float("-inf")
    program_started_at: float = float("-inf")
    order_count: int = 1
    joined_late: bool = False
    replaying: bool = False
    succeeded: bool = False
    surplus: bool = False
    last_data: float = field(default_factory=time.monotonic)
    last_heard: float = field(default_factory=time.monotonic)
    started_ranks: set[int] = field(default_factory=set)
    master: str = ""
    backoff: Backoff | None = None
    last_backoff: Backoff | None = None
    reconnected_at: float = 0.0

    @property
    def name(self) -> str:
        """Its name in the YAML."""
        return self.node_plan.node

    @property
    def live_session(self) -> HostSession | None:
        """The wire, if it can be spoken over."""
        is_live = self.session is not None and not self.session.closed and self.backoff is None
        return self.session if is_live else None

    @property
    def heartbeat_age(self) -> float:
        """Seconds since it was heard."""
        if self.session is not None:
            self.last_heard = max(self.last_heard, self.session.last_heard)
        return time.monotonic() - self.last_heard

    def on_rank_started(self, rank: int, master: str) -> None:
        """Take it that a rank runs; what met elsewhere before is over."""
        if master != self.master:
            self.started_ranks.clear()
        self.master = master
        self.started_ranks.add(rank)

    def rejoin(self, node_plan: NodePlan, session: HostSession) -> None:
        """It begins once more, with a new wire."""
        self.node_plan, self.session, self.backoff = node_plan, session, None
        self.supervisor_started = self.hub_joined = self.hub_unreachable = self.detached = (
            self.ended
        ) = False
        self.lost = self.finished = False
        self.last_data = self.last_heard = time.monotonic()
        self.started_ranks.clear()
        self.order_count += 1
        self.joined_late = self.replaying = True
        self.tailer.reopen()

    def disconnect(self, reason: str) -> None:
        """It has no wire any more; a wire that held for a moment only is no reason for haste."""
        self.backoff = Backoff(reason, self.last_heard)
        if (
            self.last_backoff is not None
            and time.monotonic() - self.reconnected_at < STABLE_AFTER_S
        ):
            self.backoff.delay_s = self.last_backoff.delay_s
            self.backoff.on_failure(reason)
            self.backoff.tries = 0

    def close(self) -> None:
        """Let go of its wire; what still comes over it is no longer heeded."""
        if self.session is not None:
            self.last_heard = max(self.last_heard, self.session.last_heard)
            self.session.close()
            self.session = None

    @property
    def progress(self) -> str:
        """How many of its ranks run, in words."""
        running, total = len(self.started_ranks), self.node_plan.rank_count
        return "running" if running == total else f"{running} of {total} ranks"
