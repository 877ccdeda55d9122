"""What both ends of a connection between supervisors have in common, and what they hear by it."""

from __future__ import annotations

import time
from typing import Any, Dict, Optional

from runner.core.failure_detector import FailureDetector
from runner.core.model.order import Hub, Order
from runner.core.protocol.events import StopCause
from runner.core.protocol.timing import HEARTBEAT_S
from runner.host.peers.connection import Identity
from runner.host.process.event_loop import EventLoop

GOODBYE_TIMEOUT_S = 1.0


class PeerObserver:
    """What a supervisor wants to hear of the others."""

    def on_peer_stop(self, reason: str, cause: StopCause) -> None:
        """The others stop."""

    def on_peer_lost(self, peer: str, reason: str, last_seen: float) -> None:
        """A node was heard of last at `last_seen`."""

    def on_peer_departed(self, peer: str, reason: str, last_seen: float, node_count: int) -> None:
        """A node was heard of last at `last_seen`, and the run goes on with `node_count` (0: not known)."""

    def on_hub_joined(self) -> None:
        """The hub is reached."""

    def on_hub_unreachable(self, reason: str) -> None:
        """The hub cannot be reached so far."""

    def on_lease_renewed(self, renewed_at: float, *, detached: bool) -> None:
        """Another supervisor heard a controller then; with `detached`, none is needed any more."""


class PeerGroup:
    """A supervisor that is alone: nobody to keep in touch with."""

    def tick(self, renewed_at: float, *, detached: bool, stalled_s: float) -> Optional[float]:  # noqa: ARG002 (see below)
        """Look after the connections.

        Args:
            renewed_at: When we heard a controller.
            detached: Whether none is needed any more.
            stalled_s: For how long nothing of the run has moved here.

        Returns:
            For how long nothing has moved anywhere; None where that is not known.
        """
        return stalled_s

    def stop(self, reason: str, cause: StopCause, *, detached: bool) -> None:
        """Tell the others that we stop, and why; `detached` as for `tick`."""

    def forward_detach(self) -> bool:
        """Have the hub say that no controller is needed any more, as one told us.

        Returns:
            Whether it will; else there is no hub to ask, and it is for us to say.
        """
        return False

    @property
    def stop_acknowledged(self) -> bool:
        """Whether all have heard that all stop, and the hub's `keep` with it, or will not."""
        return True

    @property
    def has_members(self) -> bool:
        """Whether others depend on us."""
        return False

    @property
    def hub_finished(self) -> bool:
        """Whether the others have said farewell."""
        return False

    def shut_down(self) -> None:
        """Say farewell; returns soon."""


class ConnectedGroup(PeerGroup):
    """What both ends of the connections have in common."""

    def __init__(
        self,
        order: Order,
        hub: Hub,
        token: bytes,
        loop: EventLoop,
        observer: PeerObserver,
    ) -> None:
        self._order, self._hub, self._loop, self._observer = order, hub, loop, observer
        self._identity = Identity(order.node, f"{order.run_id}/{order.attempt}", token)
        self._peer_renewed_at = 0.0
        self._heartbeat_s = min(HEARTBEAT_S, hub.lost_s / 5)
        suspect_s = max(2.5 * self._heartbeat_s, hub.lost_s / 3)
        self._detector = FailureDetector(hub.lost_s, suspect_s)
        self._next_heartbeat = 0.0

    def _on_message(self, message: Dict[str, Any]) -> None:
        if message["type"] == "heartbeat":
            self._peer_renewed_at = max(
                self._peer_renewed_at, time.monotonic() - float(message["controller_age_s"])
            )
            self._observer.on_lease_renewed(
                self._peer_renewed_at, detached=bool(message["detached"])
            )
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
    """Return the message that says we are here, with what `Circle.tick` was told."""
    age_s = round(time.monotonic() - renewed_at, 3)
    return {
        "type": "heartbeat",
        "controller_age_s": age_s,
        "detached": detached,
        "stalled_s": stalled_s,
    }


def stop_message(reason: str, cause: StopCause, *, detached: bool) -> Dict[str, Any]:
    """Return the message that says that we stop, with what `Circle.stop` was told."""
    return {"type": "stop", "reason": reason, "cause": cause.value, "detached": detached}
