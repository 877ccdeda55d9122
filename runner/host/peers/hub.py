"""Hub: the master's supervisor, to which all others of the attempt keep a connection.

With it is what the connections of hub and members have in common.
"""

from __future__ import annotations

import socket
import time
from typing import Any, Dict, Optional, Set

from runner.core.failure_detector import FailureDetector, Liveness
from runner.core.model.order import Hub, Order
from runner.core.outcome.membership import nodes_after_loss
from runner.core.protocol.events import StopCause, loss_reason
from runner.core.protocol.timing import HEARTBEAT_S, HUB_TIMEOUT_S, JOIN_TIMEOUT_S
from runner.host.peers.connection import (
    AUTH_TIMEOUT_S,
    GOODBYE_TIMEOUT_S,
    Identity,
    Listener,
    PeerConnection,
    PeerDisconnected,
    close_all,
)
from runner.host.peers.messages import (
    GROUP_MESSAGES,
    Goodbye,
    Heartbeat,
    LastHeard,
    PeerDeparted,
    Reconnecting,
    Stop,
    parse,
)
from runner.host.process.event_loop import EventLoop

MAX_STALLED_S = 1e9  # JSON has no number for a host without ranks, which is stalled for ever


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

    def on_lease_renewed(self, heard: LastHeard, *, detached: bool) -> None:
        """Another supervisor heard controllers then; with `detached` none is needed."""


class ConnectedGroup:
    """What hub and members have in common."""

    def __init__(
        self, order: Order, hub: Hub, token: bytes, loop: EventLoop, observer: PeerObserver
    ) -> None:
        self._order = order
        self._hub = hub
        self._loop = loop
        self._observer = observer
        self._identity = Identity(order.node, f"{order.run_id}/{order.attempt}", token)
        self._peers_heard = LastHeard(0.0, 0.0)
        self._heartbeat_s = min(HEARTBEAT_S, hub.lost_s / 5)
        suspect_s = max(2.5 * self._heartbeat_s, hub.lost_s / 3)
        self._detector = FailureDetector(hub.lost_s, suspect_s)
        self._next_heartbeat = 0.0

    def forward_detach(self) -> bool:
        """Have the hub confirm a detach; return False if there is no hub to do so."""
        return False

    @property
    def is_awaited(self) -> bool:
        """Whether other hosts depend on this one, or wait for it."""
        return False

    @property
    def hub_finished(self) -> bool:
        """Whether the hub has said goodbye."""
        return False

    def _on_message(self, message: Any) -> None:
        if isinstance(message, Heartbeat):
            now = time.monotonic()
            heard = LastHeard(now - message.controller_age_s, now - message.launch_age_s)
            self._peers_heard = self._peers_heard.merged(heard)
            self._observer.on_lease_renewed(self._peers_heard, detached=message.detached)
        elif isinstance(message, PeerDeparted):
            last_seen = time.monotonic() - message.age_s
            departure = (message.peer, message.reason)
            self._observer.on_peer_departed(*departure, last_seen, message.nodes)
        elif isinstance(message, Stop):
            if message.detached:
                self._observer.on_lease_renewed(self._peers_heard, detached=True)
            self._observer.on_peer_stop(message.reason, message.cause)

    def _heartbeat_due(self) -> bool:
        now = time.monotonic()
        if now < self._next_heartbeat:
            return False
        self._next_heartbeat = now + self._heartbeat_s
        return True


class HubServer(ConnectedGroup):
    """Our part where this host is the hub.

    A member is pending until its first message, then has a connection, or is disconnected while it
    may come back.
    """

    def __init__(self, listener: socket.socket, *args: Any) -> None:
        super().__init__(*args)
        self._started_at = time.monotonic()
        self._met: Set[str] = set()  # members that have joined, or that the run does without
        self._required_pending = {*self._hub.required_members}
        heard = LastHeard(self._started_at, self._started_at)
        self._heartbeat = heartbeat(heard, detached=False, stalled_s=0.0)
        self._last_progress: Dict[str, float] = {}
        self._members: Dict[str, PeerConnection] = {}
        self._disconnected: Dict[str, float] = {}
        self._reconnected: Set[PeerConnection] = set()
        self._stop_message: Optional[Dict[str, Any]] = None
        self._listener = Listener(
            listener, self._identity, self._loop, self._receive, self._on_disconnect
        )

    def tick(self, heard: LastHeard, *, detached: bool, stalled_s: float) -> Optional[float]:
        """Exchange heartbeats, and declare silent members lost.

        This host has `heard` controllers then, and no rank has made progress here for `stalled_s`.
        Returned is for how long none has on any host; None where that is unknown.
        """
        now = time.monotonic()
        # A detach is sent at once: no member must end before it knows.
        due = self._heartbeat_due() or detached != self._heartbeat["detached"]
        may_judge = self._detector.check(now)
        run_stalled_s = self._run_stalled_s(now, stalled_s)
        heard = heard.merged(self._peers_heard)
        self._heartbeat = heartbeat(heard, detached=detached, stalled_s=run_stalled_s)
        for peer in self._members.values():
            if due:
                peer.send(**self._heartbeat)
            peer.flush()
        if may_judge:
            self._check_silence(now)
        self._listener.tick()
        return run_stalled_s

    def _check_silence(self, now: float) -> None:
        last_seen = {name: peer.last_heard for name, peer in self._members.items()}
        for name, seen_at in {**self._disconnected, **last_seen}.items():
            if self._detector.judge(now - seen_at) is Liveness.LOST:
                reason = f"nothing was heard from it for {now - seen_at:.0f} s"
                self._declare_lost(name, reason, seen_at)
        if now > self._started_at + JOIN_TIMEOUT_S:
            pending = self._required_pending
            self._required_pending = set()
            reason = f"it did not start within {JOIN_TIMEOUT_S:g} s"
            for name in sorted(pending):
                self._observer.on_peer_lost(name, reason, now)

    def _run_stalled_s(self, now: float, local_stalled_s: float) -> Optional[float]:
        """Return for how long no rank has made progress; None while a member is away."""
        if self._is_one_pending or self._disconnected.keys() - set(self._hub.spares):
            return None
        return min(local_stalled_s, now - max(self._last_progress.values(), default=0.0))

    def _declare_lost(self, name: str, reason: str, last_seen: float) -> None:
        self._disconnected.pop(name, None)
        peer = self._members.get(name)
        if peer is not None:
            peer.send(**stop_message(loss_reason(name, reason), StopCause.PEER, detached=False))
            self._drop(peer)
        self._on_departure(name, reason, last_seen)

    def _on_departure(self, name: str, reason: str, last_seen: float) -> None:
        """Stop since a member is gone; unless it stood by, or the run may continue without it."""
        if name in self._hub.spares:
            return
        node_count = 1 + len({*self._members, *self._disconnected} - {*self._hub.spares})
        if self._stop_message or not nodes_after_loss(self._order, name, node_count):
            self._observer.on_peer_lost(name, reason, last_seen)
            return
        age_s = round(time.monotonic() - last_seen, 3)
        for peer in self._members.values():
            peer.send(type="peer_departed", peer=name, reason=reason, age_s=age_s, nodes=node_count)
        self._last_progress.pop(name, None)
        self._observer.on_peer_departed(name, reason, last_seen, node_count)

    def stop(self, reason: str, cause: StopCause, *, detached: bool) -> None:
        """Tell every member to stop, also one that joins later."""
        self._stop_message = stop_message(reason, cause, detached=detached)
        for peer in self._members.values():
            peer.send(**self._stop_message)

    @property
    def stop_acknowledged(self) -> bool:
        """Whether every member that starts without a controller has been told to stop."""
        return not (self._stop_message and self._required_pending)

    def await_no_longer(self, name: str) -> None:
        """Wait for this node no longer: it has joined, or the run goes on without it."""
        if name not in self._hub.spares:
            self._met.add(name)

    @property
    def is_awaited(self) -> bool:
        """Whether a member still takes part, or may be about to join."""
        late = time.monotonic() - self._started_at > HUB_TIMEOUT_S
        members = {*self._members, *self._disconnected}.difference(self._hub.spares)
        return bool(members) or (self._is_one_pending and not late)

    @property
    def _is_one_pending(self) -> bool:
        return len(self._met) < self._hub.member_count

    def shut_down(self) -> None:
        """Say goodbye, and let the members read it."""
        self._listener.close()
        for peer in self._members.values():
            peer.send(type="goodbye")
        close_all(self._members.values(), GOODBYE_TIMEOUT_S)
        self._members.clear()

    def _receive(self, peer: PeerConnection, data: Dict[str, Any]) -> None:
        message = parse(GROUP_MESSAGES, data)
        if self._members.get(peer.name) is not peer:
            self._register(peer)
        if isinstance(message, Reconnecting):
            self._disconnected[peer.name] = peer.last_heard
        if isinstance(message, (Goodbye, Reconnecting)):
            self._drop(peer)
            return
        if isinstance(message, Heartbeat):
            self._last_progress[peer.name] = time.monotonic() - (message.stalled_s or 0.0)
        self._on_message(message)

    def _on_disconnect(self, peer: PeerConnection, error: PeerDisconnected) -> None:
        self._drop(peer)
        if peer in self._reconnected and time.monotonic() < peer.connected_at + AUTH_TIMEOUT_S:
            # The member may not have learned that this connection came through.
            self._disconnected[peer.name] = peer.last_heard
        else:
            reason = f"its supervisor ended without a goodbye ({error})"
            self._on_departure(peer.name, reason, time.monotonic())

    def _register(self, peer: PeerConnection) -> None:
        self._required_pending.discard(peer.name)
        previous = self._members.get(peer.name)
        if previous is not None:
            self._reconnected = (self._reconnected - {previous}) | {peer}
            self._drop(previous)
        self._disconnected.pop(peer.name, None)
        self.await_no_longer(peer.name)
        self._members[peer.name] = peer
        peer.send(**self._heartbeat)  # at once: now it knows that it has joined
        if self._stop_message:
            peer.send(**self._stop_message)

    def _drop(self, peer: PeerConnection) -> None:
        if self._members.get(peer.name) is peer:
            del self._members[peer.name]
        peer.close()


def heartbeat(heard: LastHeard, *, detached: bool, stalled_s: Optional[float]) -> Dict[str, Any]:
    """Return the heartbeat for the arguments of `tick`."""
    now = time.monotonic()
    return {
        "type": "heartbeat",
        "controller_age_s": round(now - heard.controller, 3),
        "launch_age_s": round(now - heard.launch, 3),
        "detached": detached,
        "stalled_s": None if stalled_s is None else min(stalled_s, MAX_STALLED_S),
    }


def stop_message(reason: str, cause: StopCause, *, detached: bool) -> Dict[str, Any]:
    """Return the stop message for the arguments of `stop`."""
    return {"type": "stop", "reason": reason, "cause": cause.value, "detached": detached}
