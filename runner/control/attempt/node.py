"""Node of an attempt as the controller sees it: state, connection, ranks and logs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from runner.control.attempt.log_tail import LogTailer
from runner.control.attempt.reconnect import NodeConnection
from runner.control.rpc.session import HostSession
from runner.core.model.plan import NodePlan
from runner.core.model.spec import Node
from runner.core.protocol.states import NODE_TRANSITIONS, NodeState


@dataclass
class AttemptNode:
    """One node of an attempt; only the monitor of the attempt changes it.

    Attributes:
        node_plan: Its part of the plan.
        node: How it is reached.
        tailer: Its events and logs.
        connection: The connection to it.
        state: How far it is; changed by `move_to`.
        supervisor_started: Whether its supervisor was reached in this attempt.
        last_data: When events or logs of it arrived last.
        started_ranks: The ranks that started; after a restart by torch, those of the last start.
        master: Where these ranks meet, as torch set it.
        was_lost: Whether it was declared lost since its supervisor started last.
    """

    node_plan: NodePlan
    node: Node
    tailer: LogTailer
    connection: NodeConnection
    state: NodeState = NodeState.STARTING
    supervisor_started: bool = False
    last_data: float = field(default_factory=time.monotonic)
    started_ranks: set[int] = field(default_factory=set)
    master: str = ""
    was_lost: bool = False

    @property
    def name(self) -> str:
        """Its name in the YAML."""
        return self.node_plan.node

    @property
    def live_session(self) -> HostSession | None:
        """The session, if requests can be sent over it."""
        return self.connection.live_session

    @property
    def is_lost(self) -> bool:
        """Whether it is declared lost and did not come back."""
        return self.state is NodeState.LOST

    @property
    def has_ended(self) -> bool:
        """Whether it reported its end."""
        return self.state.has_ended

    @property
    def is_finished(self) -> bool:
        """Whether nothing more is expected of it."""
        return self.state.is_finished

    @property
    def progress(self) -> str:
        """How many of its ranks run, in words."""
        running, total = len(self.started_ranks), self.node_plan.nproc
        return "running" if running == total else f"{running} of {total} ranks"

    def move_to(self, state: NodeState) -> bool:
        """Change its state if that is legal; return whether it did.

        Messages of one node arrive late and over several connections: one that does not fit the
        state any more changes nothing.
        """
        is_legal = state in NODE_TRANSITIONS[self.state]
        if is_legal:
            self.state = state
            self.was_lost = state is NodeState.LOST or (self.was_lost and self.has_ended)
        return is_legal

    def finish(self) -> None:
        """Expect nothing more of it; without its own report its end stays unverified."""
        self.move_to(NodeState.COMPLETE if self.has_ended else NodeState.UNVERIFIED)

    def on_rank_started(self, rank: int, master: str) -> None:
        """Count a rank; ranks that met elsewhere belong to an earlier start."""
        if master != self.master:
            self.started_ranks.clear()
        self.master = master
        self.started_ranks.add(rank)

    def rejoin(self, node_plan: NodePlan, session: HostSession) -> None:
        """Start it again within the attempt, over a new session."""
        self.node_plan, self.supervisor_started = node_plan, False
        self.connection.replace(session)
        self.move_to(NodeState.STARTING)
        self.last_data = time.monotonic()
        self.started_ranks.clear()
        self.tailer.reopen()
