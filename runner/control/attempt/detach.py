"""Detach sequence of an attempt: tell every host that no controller is needed, and wait for it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from runner.control.attempt.node import AttemptNode
from runner.control.attempt.peer_status import PeerStatus
from runner.control.attempt.stop import send_stop
from runner.control.rpc.session import HostSession
from runner.core.protocol.timing import HUB_REPORT_TIMEOUT_S

DETACH_TIMEOUT_S = 2.0
"""How long hosts may take to confirm the detach."""


class DetachSequence:
    """The detach of one attempt, and the spares that stand by for it.

    Attributes:
        standbys: The spares with a standby order.
    """

    def __init__(
        self,
        nodes: Mapping[str, AttemptNode],
        sessions: Mapping[str, HostSession],
        peer_status: PeerStatus,
    ) -> None:
        self.standbys: tuple[str, ...] = ()
        self._nodes, self._sessions, self._peer_status = nodes, sessions, peer_status
        self._deadline = float("inf")

    def expect_standbys(self, names: Iterable[str]) -> None:
        """Note which spares get a standby order."""
        self.standbys = tuple(names)
        self._peer_status.pending_standbys = {*self.standbys}

    def is_possible(self, all_started_at: float | None) -> bool:
        """Return whether every host has joined the hub, reported that it cannot, or timed out.

        Args:
            all_started_at: When the last rank of the attempt started; None before that.
        """
        if all_started_at is None:
            return False
        is_late = time.monotonic() - all_started_at > HUB_REPORT_TIMEOUT_S
        return self._peer_status.all_reported or is_late

    def begin(self, exclude: Iterable[str]) -> None:
        """Tell every host but `exclude`, to which the hub will forward it."""
        self._deadline = time.monotonic() + DETACH_TIMEOUT_S
        for name, node in self._nodes.items():
            is_excluded = self._peer_status.is_detached(name) or name in exclude
            if node.live_session and not is_excluded:
                node.live_session.request("command", {"command": "detach"})
        for session in self._standby_sessions(self._peer_status.pending_standbys):
            session.request("command", {"command": "detach"})

    @property
    def is_complete(self) -> bool:
        """Whether every host confirmed it, or had time to."""
        return self._peer_status.all_detached or time.monotonic() >= self._deadline

    def stop_standbys(self) -> None:
        """Release the spares of an attempt that is over: its hub may be gone too early to do so."""
        for session in self._standby_sessions(set()):
            send_stop(session, "the attempt is over")

    def _standby_sessions(self, exclude: set[str]) -> list[HostSession]:
        names = (name for name in self.standbys if name not in exclude)
        return [self._sessions[name] for name in names if name in self._sessions]
