"""Peer group: how a supervisor keeps in touch with the others of its attempt, hub or member."""

from __future__ import annotations

import time
from typing import Any, Dict, Optional

from runner.core.failure_detector import FailureDetector
from runner.core.model.order import Hub, Order
from runner.core.protocol.events import StopCause
from runner.core.protocol.timing import HEARTBEAT_S
from runner.host.peers.connection import Identity
from runner.host.process.event_loop import EventLoop

GOODBYE_TIMEOUT_S = 1.0  # a group shuts down within about twice that


class PeerObserver:
    """Receives what the other supervisors of the attempt report."""

    def on_peer_stop(self, reason: str, cause: StopCause) -> None:
        """The attempt stops on the other hosts."""

    def on_peer_lost(self, peer: str, reason: str, last_seen: float) -> None:
        """A node was lost; its last sign of life came at `last_seen`, monotonic."""

    def on_peer_departed(self, peer: str, reason: str, last_seen: float, node_count: int) -> None:
        """A node was lost, and the run continues with `node_count` nodes (0: unknown)."""

    def on_hub_joined(self) -> None:
        """The hub has answered."""

    def on_hub_unreachable(self, reason: str) -> None:
        """The hub cannot be reached."""

    def on_lease_renewed(self, renewed_at: float, *, detached: bool) -> None:
        """Another supervisor heard a controller at `renewed_at`; with `detached` none is needed."""


class ConnectedGroup:
    """What hub and members have in common."""

    def __init__(
        self, order: Order, hub: Hub, token: bytes, loop: EventLoop, observer: PeerObserver
    ) -> None:
        self._order, self._hub, self._loop, self._observer = order, hub, loop, observer
        self._identity = Identity(order.node, f"{order.run_id}/{order.attempt}", token)
        self._peer_renewed_at = 0.0
        self._heartbeat_s = min(HEARTBEAT_S, hub.lost_s / 5)
        suspect_s = max(2.5 * self._heartbeat_s, hub.lost_s / 3)
        self._detector = FailureDetector(hub.lost_s, suspect_s)
        self._next_heartbeat = 0.0

    def forward_detach(self) -> bool:
        """Have the hub confirm a detach; return False if there is no hub to do so."""
        return False

    @property
    def has_members(self) -> bool:
        """Whether other hosts depend on this one."""
        return False

    @property
    def hub_finished(self) -> bool:
        """Whether the hub has said goodbye."""
        return False

    def _on_message(self, message: Dict[str, Any]) -> None:
        if message["type"] == "heartbeat":
            renewed_at = time.monotonic() - float(message["controller_age_s"])
            self._peer_renewed_at = renewed_at = max(self._peer_renewed_at, renewed_at)
            self._observer.on_lease_renewed(renewed_at, detached=bool(message["detached"]))
        elif message["type"] == "peer_departed":
            last_seen = time.monotonic() - float(message["age_s"])
            departure = (str(message["peer"]), str(message["reason"]))
            self._observer.on_peer_departed(*departure, last_seen, int(message["nodes"]))
        elif message["type"] == "stop":
            if message["detached"]:
                self._observer.on_lease_renewed(self._peer_renewed_at, detached=True)
            self._observer.on_peer_stop(str(message["reason"]), StopCause(message["cause"]))

    def _heartbeat_due(self) -> bool:
        now = time.monotonic()
        if now < self._next_heartbeat:
            return False
        self._next_heartbeat = now + self._heartbeat_s
        return True


def heartbeat(renewed_at: float, *, detached: bool, stalled_s: Optional[float]) -> Dict[str, Any]:
    """Return the heartbeat for the arguments of `tick`."""
    age_s = round(time.monotonic() - renewed_at, 3)
    state = {"controller_age_s": age_s, "detached": detached, "stalled_s": stalled_s}
    return {"type": "heartbeat", **state}


def stop_message(reason: str, cause: StopCause, *, detached: bool) -> Dict[str, Any]:
    """Return the stop message for the arguments of `stop`."""
    return {"type": "stop", "reason": reason, "cause": cause.value, "detached": detached}
