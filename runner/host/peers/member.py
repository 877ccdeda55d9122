"""Member: the heartbeats of a supervisor to the hub, and a new connection when it falls silent."""

from __future__ import annotations

import errno
import time
from typing import Any, Dict, List, Optional

from runner.core.failure_detector import Liveness
from runner.core.outcome.membership import is_indispensable
from runner.core.protocol.events import StopCause, loss_reason
from runner.core.protocol.timing import HUB_TIMEOUT_S, JOIN_TIMEOUT_S
from runner.host.peers.connection import (
    AUTH_TIMEOUT_S,
    CLIENT,
    GOODBYE_TIMEOUT_S,
    PeerConnection,
    PeerDisconnected,
    close_all,
)
from runner.host.peers.dialler import RetryingDialler
from runner.host.peers.hub import ConnectedGroup, heartbeat, stop_message
from runner.host.peers.messages import GROUP_MESSAGES, Goodbye, Heartbeat, LastHeard, Stop, parse

RETRY_PAUSE_S = 0.1  # between two attempts to reach the hub
MAX_RETRY_PAUSE_S = 2.0
RECONNECT_TIMEOUT_S = 1.0  # how long a new connection may take when the old one fell silent


class HubClient(ConnectedGroup):
    """Our part where another host is the hub."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._hub_peer: Optional[PeerConnection] = None
        self._dialler = RetryingDialler(
            self._hub.addr, self._hub.port, RETRY_PAUSE_S, MAX_RETRY_PAUSE_S
        )
        self._started_at = time.monotonic()
        self._reported_unreachable = False
        self._joined = False
        self._finished = False
        self._last_heard = 0.0
        self._suspected_peer: Optional[PeerConnection] = None  # silent, while another is tried
        self._reset_at = float("-inf")  # when this host gave up a connection
        self._stop_message: Optional[Dict[str, Any]] = None
        self._stop_received = False
        self._wants_detach = self._detach_sent = False
        self._last_run_progress: Optional[float] = None

    def tick(self, heard: LastHeard, *, detached: bool, stalled_s: float) -> Optional[float]:
        """Exchange heartbeats, connect to the hub, and declare it lost if it is silent."""
        if self._finished:
            return None
        may_judge = self._detector.check(time.monotonic())
        now = time.monotonic()
        peer = self._hub_peer
        detached = detached or self._wants_detach
        # A detach is sent at once: the hub must know it before the end.
        due = self._heartbeat_due() or detached != self._detach_sent
        self._detach_sent = detached
        for connection in self._peers:
            if due:
                connection.send(**heartbeat(heard, detached=detached, stalled_s=stalled_s))
            connection.flush()
            if connection.name:
                self._last_heard = max(self._last_heard, connection.last_heard)
        silence = now - self._last_heard
        loss_reason = self._loss_reason(now) if may_judge else ""
        if loss_reason:
            self._declare_lost(loss_reason, self._last_heard or now)
        elif peer is None and self._suspected_peer and silence < self._detector.suspect_s:
            self._dialler.close()  # the old connection works again
            self._hub_peer = self._suspected_peer
            self._suspected_peer = None
        elif peer is None:
            self._advance_connect()
        elif peer.name and self._detector.judge(silence) is not Liveness.ALIVE:
            # After lost packets TCP waits longer than `lost_s`; a new connection does not.
            self._suspected_peer = peer
            self._hub_peer = None
            self._dialler.reset()
        elif may_judge and not peer.name and now - peer.connected_at > self._handshake_timeout_s:
            self._retry("it does not know the run's token")
        return self._run_stalled_s(stalled_s)

    def _loss_reason(self, now: float) -> str:
        """Return why the hub is lost, "" if it is not; a controller watches over its own launch."""
        silence = now - self._last_heard
        if self._joined:
            timed_out = self._detector.judge(silence) is Liveness.LOST
            return f"nothing was heard from it for {silence:.0f} s" if timed_out else ""
        late = bool(self._hub.required_members) and now > self._started_at + JOIN_TIMEOUT_S
        return f"it could not be reached within {JOIN_TIMEOUT_S:g} s" if late else ""

    def _run_stalled_s(self, local_stalled_s: float) -> Optional[float]:
        if self._last_run_progress is None:
            return None
        return min(local_stalled_s, time.monotonic() - self._last_run_progress)

    @property
    def _peers(self) -> List[PeerConnection]:
        return [peer for peer in (self._hub_peer, self._suspected_peer) if peer is not None]

    @property
    def _handshake_timeout_s(self) -> float:
        return RECONNECT_TIMEOUT_S if self._joined else AUTH_TIMEOUT_S

    def stop(self, reason: str, cause: StopCause, *, detached: bool) -> None:
        """Tell the hub, which tells every member, this one included."""
        self._stop_message = stop_message(reason, cause, detached=detached or self._wants_detach)
        for peer in self._peers:
            peer.send(**self._stop_message)

    def forward_detach(self) -> bool:
        """Have the hub confirm a detach: it alone knows what came first."""
        if self._finished or not self._joined:
            return False
        self._wants_detach = True
        return True

    @property
    def stop_acknowledged(self) -> bool:
        """Whether the hub has told all to stop, or will not.

        A member that never joined has nothing to wait for, except after it sent its detach.
        """
        is_outside = not self._joined and (self._reported_unreachable or not self._detach_sent)
        return self._stop_received or self._finished or is_outside

    @property
    def is_awaited(self) -> bool:
        """Whether the hub, which waits for every member, has not met this one yet."""
        return not (self._joined or self._finished or self._reported_unreachable)

    @property
    def hub_finished(self) -> bool:
        """Whether the hub has said goodbye."""
        return self._finished

    def shut_down(self) -> None:
        """Say goodbye, after delivering the stop if that is possible."""
        if self._finished:
            return
        deadline = time.monotonic() + GOODBYE_TIMEOUT_S
        while self._stop_message and self._has_unsent() and time.monotonic() < deadline:
            if self._hub_peer is None:
                self._advance_connect()
            else:
                self._hub_peer.dispatch(self._receive, self._on_disconnect)
            time.sleep(0.02)
        self._finished = True
        self._dialler.close()
        peers = self._peers
        self._hub_peer = self._suspected_peer = None
        for peer in peers:
            peer.send(type="goodbye")
        close_all(peers, GOODBYE_TIMEOUT_S)

    def _has_unsent(self) -> bool:
        return not self._finished and (self._hub_peer is None or not self._hub_peer.flushed)

    def _advance_connect(self) -> None:
        try:
            connection = self._dialler.poll(self._handshake_timeout_s)
        except OSError as error:
            if error.errno == errno.ECONNREFUSED and self._joined:
                self._declare_lost("its supervisor is gone", time.monotonic())
            else:
                self._retry(error.strerror or "")
            return
        if connection is None:
            return
        self._hub_peer = PeerConnection(connection, self._identity, CLIENT)
        self._hub_peer.watch(self._loop, self._receive, self._on_disconnect)
        self._next_heartbeat = 0.0  # our first message, by which the hub knows us
        if self._stop_message:
            self._hub_peer.send(**self._stop_message)

    def _retry(self, reason: str) -> None:
        """Try again after a pause; report once that the hub is unreachable."""
        now = time.monotonic()
        if self._hub_peer is not None:
            self._hub_peer.send(type="reconnecting")  # else the hub would take the end for a death
            self._reset_at = now
            self._hub_peer.close()
            self._hub_peer = None
        if self._joined:
            self._dialler.reset()
        self._dialler.pause()
        late = now > self._started_at + HUB_TIMEOUT_S
        if late and not self._reported_unreachable and not self._joined:
            self._reported_unreachable = True
            hub = self._hub
            self._observer.on_hub_unreachable(f"{hub.node} at {hub.addr} port {hub.port}: {reason}")

    def _receive(self, peer: PeerConnection, data: Dict[str, Any]) -> None:
        message = parse(GROUP_MESSAGES, data)
        if not self._joined:
            self._joined = True
            self._observer.on_hub_joined()
        if isinstance(message, Goodbye):
            self._close_all()
            return
        if isinstance(message, Heartbeat):
            stalled_s = message.stalled_s
            self._last_run_progress = None if stalled_s is None else time.monotonic() - stalled_s
        self._stop_received = self._stop_received or isinstance(message, Stop)
        self._on_message(message)
        if peer is self._hub_peer and self._suspected_peer is not None:
            self._suspected_peer.close()  # the hub has closed its end
            self._suspected_peer = None

    def _on_disconnect(self, peer: PeerConnection, error: PeerDisconnected) -> None:
        if peer is self._suspected_peer:  # the newer connection counts
            peer.close()
            self._suspected_peer = None
        if self._hub_peer is not peer:
            return
        if peer.name and time.monotonic() - self._reset_at > self._hub.lost_s:
            reason = f"its supervisor ended without a goodbye ({error})"
            self._declare_lost(reason, time.monotonic())
        else:
            self._retry(str(error))

    def _close_all(self) -> None:
        self._finished = True
        self._dialler.close()
        for peer in self._peers:
            peer.close()
        self._hub_peer = self._suspected_peer = None
        if self._wants_detach and not self._stop_received:  # the hub will not answer any more
            self._observer.on_lease_renewed(self._peers_heard, detached=True)

    def _declare_lost(self, reason: str, last_seen: float) -> None:
        for peer in self._peers:
            lost = loss_reason(self._hub.node, reason)
            peer.send(**stop_message(lost, StopCause.PEER, detached=False))
        self._close_all()
        if self._joined and not is_indispensable(self._order, self._hub.node):
            self._observer.on_hub_unreachable(f"{self._hub.node}: {reason}")
            self._observer.on_peer_departed(self._hub.node, reason, last_seen, 0)
        else:
            self._observer.on_peer_lost(self._hub.node, reason, last_seen)
